"""Run folders with nonsense inside: each file of a run is changed in one place, and every command is asked about it."""

import itertools
import json
import random
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from faulty import asked
from torchcaps.core.errors import UserError
from torchcaps.models.capsnet import CapsNet
from torchcaps.training.runs import load_run

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 1e308, -0.5, float("nan"), float("inf")),
    *("", "x", "\x1b[2J", "é" * 50, "../../etc/passwd", "a\nb", "1" * 5000),
    *([], [[]], [None], [1, 2, 3], {}, {"class": "os:system"}, {"module": "x"}, {"a": {"b": []}}),
]
"""Values that no file should have, for every place that a JSON file has."""
SLOW = 125
"""Every so many mutants are drawn or exported, which takes a hundred times longer than to read them."""
NAMES = ("config.json", "result.json", "manifest.json", "checkpoint/latest.json", "checkpoint/previous.json")


def mutate(run: Path, lots: random.Random) -> str:
    """Change one file of the run; says what was done."""
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    path = lots.choice(files)
    name = path.relative_to(run).as_posix()
    kinds: list[Callable[[Path, random.Random], str]] = [_cut, _flip, _junk, _gone, _folder, _odd_bytes]
    if path.suffix == ".json":
        kinds += [_value, _value, _value, _value, _key, _key, _top, _deep]
    if path.suffix == ".csv":
        kinds += [_table, _table, _table, _table]
    if path.suffix == ".safetensors":
        kinds += [_header, _header, _other_tensors, _other_tensors]
    kind = lots.choice(kinds)
    done = f"{name}: {kind.__name__.strip('_')} {kind(path, lots)}"
    if path.suffix == ".safetensors" and kind in (_header, _other_tensors, _cut, _flip, _junk, _odd_bytes):
        _sign(run, path, lots)
    return done


def _cut(path: Path, lots: random.Random) -> str:
    content = path.read_bytes()
    length = lots.choice([0, 1, len(content) // 2, max(0, len(content) - 1), lots.randrange(len(content) + 1)])
    path.write_bytes(content[:length])
    return f"at {length}"


def _flip(path: Path, lots: random.Random) -> str:
    content = bytearray(path.read_bytes() or b"\0")
    place = lots.randrange(len(content))
    content[place] ^= 1 << lots.randrange(8)
    path.write_bytes(content)
    return f"at {place}"


def _junk(path: Path, lots: random.Random) -> str:
    path.write_bytes(lots.randbytes(lots.choice([1, 8, 100, 5000])))
    return ""


def _odd_bytes(path: Path, lots: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place = lots.randrange(len(content) + 1)
    odd = lots.choice([b"\0", b"\xff\xfe", b"\r\n", b'"', b"{", b"[" * 3000, b"," * 20, b"9" * 5000, b"NaN", b"1e999"])
    content[place : place + lots.choice([0, len(odd)])] = odd
    path.write_bytes(content)
    return f"{odd[:8]!r} at {place}"


def _gone(path: Path, lots: random.Random) -> str:
    path.unlink()
    return ""


def _folder(path: Path, lots: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return ""


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places of a JSON value, the value itself left aside."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [place for key, part in inner for place in ((*at, key), *_places(part, (*at, key)))]


def _value(path: Path, lots: random.Random) -> str:
    value = json.loads(path.read_text())
    *way, last = place = lots.choice(_places(value))
    part, odd = value, lots.choice(ODD)
    for key in way:
        part = part[key]
    if last in ("epochs", "steps", "max_seconds") and isinstance(odd, int | float) and odd > 1:
        odd = asked.STEPS + 2  # a training that is told to go on for years does so
    part[last] = odd
    path.write_text(json.dumps(value))
    return f"{place} is {str(odd)[:30]!r}"


def _key(path: Path, lots: random.Random) -> str:
    value = json.loads(path.read_text())
    *way, last = place = lots.choice(_places(value))
    part = value
    for key in way:
        part = part[key]
    found = part.pop(last)
    if lots.random() < 0.5 and isinstance(part, dict):
        part[lots.choice(["x", "", "data", "é"])] = found
    path.write_text(json.dumps(value))
    return f"{place} removed or renamed"


def _top(path: Path, lots: random.Random) -> str:
    odd = lots.choice(ODD)
    path.write_text(json.dumps(odd))
    return f"is {str(odd)[:30]!r}"


def _deep(path: Path, lots: random.Random) -> str:
    depth = lots.choice([50, 2000, 200_000])
    path.write_text("[" * depth + "]" * depth)
    return f"{depth} levels"


def _table(path: Path, lots: random.Random) -> str:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row = lots.randrange(len(rows))
    how = lots.choice(["value", "name", "more", "less", "none", "twice"])
    if how in ("value", "name"):
        row = 0 if how == "name" else row
        rows[row][lots.randrange(len(rows[row]))] = lots.choice(
            ["", "x", "nan", "inf", "1e999", '"', "-1", "é", "9" * 5000]
        )
    elif how == "more":
        rows[row] += ["1", "2"]
    elif how == "less":
        rows[row] = rows[row][:1]
    elif how == "none":
        rows = rows[: lots.choice([0, 1])]
    else:
        rows[0][-1] = rows[0][0]
    path.write_text("\n".join(",".join(row) for row in rows))
    return how


def _header(path: Path, lots: random.Random) -> str:
    """A safetensors file begins with the length of its header, which is JSON."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    *way, last = place = lots.choice(_places(header))
    part = header
    for key in way:
        part = part[key]
    part[last] = lots.choice([*ODD, "F64", "I64", "BF16", [2**40], [0], [-1]])
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", lots.choice([len(text), len(text) + 1, 0, 2**60])) + text + content[8 + length :]
    )
    return f"{place}"


def _other_tensors(path: Path, lots: random.Random) -> str:
    import torch
    from safetensors.torch import load, save

    tensors = load(path.read_bytes())
    name = lots.choice(sorted(tensors))
    how = lots.choice(["gone", "shape", "type", "more", "nan", "empty", "name"])
    found = tensors[name]
    if how == "gone":
        del tensors[name]
    elif how == "shape":
        tensors[name] = torch.zeros(lots.choice([(), (1,), (0,), (3, 5), (2, 2, 2)]), dtype=found.dtype)
    elif how == "type":
        kinds = [torch.int64, torch.bool, torch.float64, torch.uint8, torch.bfloat16]
        tensors[name] = found.to(lots.choice(kinds))
    elif how == "more":
        tensors[lots.choice(["x", "optimiser.0", "optimiser.9.9.x", "optimiser.a.b.c", "model."])] = torch.zeros(3)
    elif how == "nan":
        tensors[name] = torch.full_like(found, lots.choice([0, 1]) if not found.is_floating_point() else float("nan"))
    elif how == "empty":
        tensors = {}
    else:
        tensors["other"] = tensors.pop(name)
    path.write_bytes(save(tensors))
    return f"{how} {name}"


def _sign(run: Path, path: Path, lots: random.Random) -> None:
    """Half of the time the recorded hash is made to fit, so that what follows the check of the hash is reached too."""
    import hashlib

    if lots.random() < 0.5 or not path.is_file():
        return
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for name in NAMES:
        record = run / name
        if not record.is_file():
            continue
        fields = json.loads(record.read_text())
        if path.name == "model.safetensors" and "weights_sha256" in fields:
            fields["weights_sha256"] = digest
        if path.name == "answers.safetensors" and "answers_sha256" in fields:
            fields["answers_sha256"] = digest
        if fields.get("file") == path.name:
            fields["sha256"] = digest
        record.write_text(json.dumps(fields))


def _direct(function: Callable[[], Any]) -> asked.Answer:
    """What a program that calls the package gets: a UserError is an answer."""
    import traceback

    try:
        function()
    except UserError as error:
        return asked.Answer(2, f"torchcaps: {error}\n" if "\n" not in str(error) else str(error), "")
    except BaseException:
        return asked.Answer(1, "", traceback.format_exc())
    return asked.Answer(0, "", "")


def campaign(folder: Path, count: int, seed: int, slow: int, say: Callable[[str], None]) -> dict[str, Any]:
    """`count` mutants, each asked by one command in turn; of the slow commands every `slow`th mutant."""
    lots = random.Random(seed)
    original, picture = asked.make_run(folder / "original"), asked.make_picture(folder / "x.png")
    asked.call("train", "--resume", "--out", str(original), "--quiet", "--steps", str(asked.STEPS + 1))
    asked.call("figures", str(original))
    shutil.rmtree(original / "figures", ignore_errors=True)
    (original / "report.html").unlink(missing_ok=True)
    run, counts, faults, answers = folder / "run", Counter(), [], Counter()
    quick = ["evaluate", "predict", "resume", "prolong", "load_run", "from_pretrained"]
    for number in range(count):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        done = mutate(run, lots)
        name = quick[number % len(quick)]
        if slow and number % slow == 0:
            name = ("figures", "export")[(number // slow) % 2]
        if name == "load_run":
            answer = _direct(lambda: load_run(run))
        elif name == "from_pretrained":
            answer = _direct(lambda: CapsNet.from_pretrained(run))
        else:
            answer = asked.call(*asked.commands(run, picture, folder / "out.pt2")[name])
        counts[name] += 1
        stopped = "stopped" in answer.said and not answer.code
        answers["refused in one line" if answer.code == 2 else "stopped by the clock" if stopped else "answered"] += 1
        if (wrong := answer.fault()) is not None:
            faults.append({"number": number, "command": name, "mutation": done, "what": wrong[-1500:]})
            say(f"{number} {name} {done}\n{wrong[-1500:]}")
    return {"injected": count, "by_command": dict(counts), **answers, "wrong": len(faults), "found": faults[:5]}


def damage(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Every file of a run cut off and with flipped bits, each read by `evaluate` and gone on with by `train --resume`.

    What is damaged is refused or does not matter; of a checkpoint the one before it is taken.
    """
    original, run, picture = asked.make_run(folder / "whole"), folder / "damaged", folder / "x.png"
    files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file() and path.suffix)
    count, faults, lots = 0, [], random.Random(0)
    for name in files:
        content = (original / name).read_bytes()
        cuts = [content[: len(content) * part // 4] for part in range(4)] + [content[:1], content[:-1]]
        flips = []
        for _ in range(8):
            bits = bytearray(content)
            bits[lots.randrange(len(bits))] ^= 1 << lots.randrange(8)
            flips.append(bytes(bits))
        for harmed, command in itertools.product([*cuts, *flips], ("evaluate", "prolong")):
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(original, run)
            (run / name).write_bytes(harmed)
            answer = asked.call(*asked.commands(run, picture, folder / "out")[command])
            count += 1
            wrong = answer.fault()
            if wrong is None and name.parent.name == "checkpoint" and command == "prolong" and answer.code:
                wrong = f"it does not go on: {answer.said}"
            if wrong is not None:
                faults.append({"file": str(name), "command": command, "what": wrong[-1500:]})
                say(f"{name} {command}\n{wrong[-1500:]}")
    return {"injected": count, "wrong": len(faults), "found": faults[:5]}


def main() -> None:
    torch.set_num_threads(1)
    asked.register()
    room, what, *numbers = sys.argv[1:]

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = damage(Path(room), say) if what == "damage" else campaign(Path(room), *map(int, numbers), SLOW, say)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
