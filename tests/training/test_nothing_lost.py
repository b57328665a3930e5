"""What an unlucky week does to a training: kills, damage, a second training, weights that are not finite."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchcaps
from torchcaps.app.cli import main
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json, written_whole
from torchcaps.training.runs import Checkpoint, alone
from torchcaps.training.stopping import Stop
from torchcaps.training.train import go_on

OPTIONS = ["--data", "mnist-mini", "--batch", "32", "--validation", "0", "--checkpoint-seconds", "0.2", "--quiet"]
TENSORS = torch.rand(64, 1, 8, 8), torch.arange(64) % 4


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torchcaps", "train", *arguments]


def tiny() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def test_a_second_training_in_the_folder_is_refused(tmp_path: Path) -> None:
    torchcaps.fit(tiny(), TENSORS, out=tmp_path / "run", steps=2, quiet=True)
    with alone(tmp_path / "run"), pytest.raises(UserError, match="another training is at work in"):
        go_on(tmp_path / "run", steps=4)
    with alone(tmp_path / "run"), pytest.raises(UserError, match="another training is at work in"):
        torchcaps.fit(tiny(), TENSORS, out=tmp_path / "run", steps=2, quiet=True)
    assert (tmp_path / "run" / "result.json").exists(), "nothing was touched"


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    hold = "import time; from pathlib import Path; from torchcaps.training.runs import alone\n"
    hold += f"with alone(Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="at work"), alone(tmp_path):
            pass
        holder.kill()
    with alone(tmp_path):
        pass


def test_a_folder_made_for_nothing_goes_again(tmp_path: Path) -> None:
    with pytest.raises(UserError), alone(tmp_path / "run"):
        raise UserError("no")
    assert list(tmp_path.iterdir()) == []


class Diverging(nn.Module):
    """Its gradients are not numbers from one step on, while its loss is."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.layer, self.at, self.asked = nn.Linear(64, 4), at, 0

    def forward(self, images: Tensor) -> Tensor:
        scores = self.layer(images.flatten(1))
        if self.training:
            self.asked += 1
            if self.asked >= self.at:
                scores.register_hook(lambda grad: grad * torch.nan)
        return scores


@pytest.mark.parametrize(("at", "seconds", "kept"), [(3, 1e-9, 2), (6, 1e-9, 5), (6, 900.0, 0)])
def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, at: int, seconds: float, kept: int) -> None:
    """Also those of the last step, whether or not it was time for a checkpoint."""
    with pytest.raises(UserError, match=r"at step \d+; the checkpoint of step \d+ is kept: .* lr=") as raised:
        torchcaps.fit(Diverging(at), TENSORS, out=tmp_path, steps=6, checkpoint_seconds=seconds, quiet=True)
    assert len(str(raised.value).splitlines()) == 1
    loaded = Checkpoint(tmp_path).load()
    assert loaded is not None
    tensors, state = loaded
    assert state["step"] == kept
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("how", ["flipped bit", "cut short", "gone", "pointer", "another step"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = Checkpoint(tmp_path)
    for step in range(1, 5):
        checkpoint.save({"x": torch.full((100,), float(step))}, {"step": step})
    files = sorted((tmp_path / "checkpoint").glob("*.safetensors"))
    assert [file.name.split("-")[1] for file in files] == ["3", "4"], "the last two are kept"
    content = bytearray(files[1].read_bytes())
    content[-5] ^= 4
    match how:
        case "flipped bit":
            files[1].write_bytes(content)
        case "cut short":
            files[1].write_bytes(content[:50])
        case "gone":
            files[1].unlink()
        case "pointer":
            (tmp_path / "checkpoint" / "latest.json").write_text('{"file": ')
        case "another step":  # one bit of the digit, and it is JSON as before
            pointer = tmp_path / "checkpoint" / "latest.json"
            pointer.write_text(pointer.read_text().replace('"step": 4', '"step": 6'))
    loaded = checkpoint.load()
    assert loaded is not None
    assert loaded[1]["step"] == 3
    assert loaded[0]["x"][0] == 3
    assert "going on from step 3" in capsys.readouterr().err
    checkpoint.save({"x": torch.zeros(100)}, {"step": 5})
    files[1].unlink(missing_ok=True)
    found = [read_json(pointer)["step"] for pointer in (checkpoint.latest, checkpoint.previous)]
    assert found == [5, 3], "what was damaged is not kept as the older one"


def test_both_damaged_is_one_clear_line(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    for step in range(2):
        checkpoint.save({"x": torch.full((100,), float(step))}, {"step": step})
    for file in (tmp_path / "checkpoint").glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match="is damaged"):
        checkpoint.load()


def test_a_file_that_cannot_be_removed_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "unlink", refuse)
    checkpoint = Checkpoint(tmp_path)
    for step in range(4):
        checkpoint.save({"x": torch.full((3,), float(step))}, {"step": step})
    loaded = checkpoint.load()
    assert loaded is not None
    assert loaded[1]["step"] == 3


def test_two_writers_in_one_thread_have_temporary_files_of_their_own(tmp_path: Path) -> None:
    with written_whole(tmp_path / "x") as one:
        one.write(b"one")
        with written_whole(tmp_path / "x") as other:
            other.write(b"other")
        assert (tmp_path / "x").read_bytes() == b"other"
    assert (tmp_path / "x").read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.fixture
def attentive() -> Iterator[None]:
    """What a shell starts in the background ignores Ctrl-C, and so would the programs that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("attentive")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_asked_to_stop_it_saves_first(tmp_path: Path, number: signal.Signals) -> None:
    arguments = [option for option in OPTIONS if option not in ("0.2", "--checkpoint-seconds", "--quiet")]
    begun = command(
        "capsnet-mnist-small", *arguments, "--steps", "4000", "--checkpoint-seconds", "900", "--out", str(tmp_path)
    )
    with subprocess.Popen(begun, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step"):
                break
        process.send_signal(number)
        said = process.stderr.read()
        code = process.wait(30)
    assert code == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert "which is saved: go on with --resume" in said
    state = read_json(tmp_path / "checkpoint" / "latest.json")
    assert state["step"] >= 50


@pytest.mark.usefixtures("attentive")
def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked is None


def test_flags_with_resume_are_honoured_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path)
    main(["train", "capsnet-mnist-small", *OPTIONS, "--steps", "2", "--out", run])
    main(["train", "--resume", "capsnet-mnist-small", *OPTIONS, "--out", run, "--steps", "4", "--lr", "0.0005"])
    assert read_json(tmp_path / "config.json")["train"]["lr"] == 0.0005
    assert read_json(tmp_path / "manifest.json")["continued"]
    for flags in (["--batch", "8"], ["--seed", "3"], ["--no-reconstruction"], ["--rotate", "5"], ["cnn-mnist-small"]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["train", *flags, "--resume", "--out", run])
        said = capsys.readouterr().err
        assert left.value.code == 2
        assert len(said.splitlines()) == 1
        assert (flags[0] if flags[0].startswith("--") else "the model") in said


def test_started_again_by_torchrun_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = torchcaps.fit(tiny(), TENSORS, out=tmp_path, steps=3, quiet=True)
    with pytest.raises(UserError, match="already holds a run"):
        torchcaps.fit(tiny(), TENSORS, out=tmp_path, steps=3, quiet=True, resume=False)
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        with monkeypatch.context() as restarted:
            restarted.setenv(name, "1")
            assert torchcaps.fit(tiny(), TENSORS, out=tmp_path, steps=3, quiet=True, resume=False) == first
