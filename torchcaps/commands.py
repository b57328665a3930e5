"""What each command does."""

import json
import os
import sys
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from torchcaps import data as named
from torchcaps.data import sources
from torchcaps.errors import UserError
from torchcaps.evaluate import evaluate as score
from torchcaps.images import open_image, to_pixels
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.zoo import MODELS, Model, configure, count_parameters, create_model, find
from torchcaps.runs import load_run, read_json
from torchcaps.train import TrainConfig, defaults_for
from torchcaps.train import train as run_training

NONE_OF_THESE = 0.5


def models(args: Namespace) -> None:
    rows = [
        {"name": name, "parameters": count_parameters(create_model(name)), "pretrained": name in PRETRAINED}
        for name in MODELS
    ]
    if args.json:
        return _print_json(rows)
    shown = [
        (row["name"], f"{row['parameters']:,}", "yes" if row["pretrained"] else "", MODELS[row["name"]].about)
        for row in rows
    ]
    _print_table(("model", "parameters", "weights", ""), shown)


def data_list(args: Namespace) -> None:
    rows = [
        {"name": name, "image": spec.image, "classes": len(spec.classes), "about": spec.about}
        for name, spec in named.DATA.items()
    ]
    if args.json:
        return _print_json(rows)
    shown = [(row["name"], "x".join(map(str, row["image"])), str(row["classes"]), row["about"]) for row in rows]
    _print_table(("data set", "image", "classes", ""), shown)


def data_fetch(args: Namespace) -> None:
    spec = named.find(args.name)
    files = {key: str(sources.fetch(key)) for key in sources.SETS[spec.files]}
    if args.json:
        return _print_json({"name": args.name, "files": files, "sha256": sources.hashes(spec.files)})
    print(f"{args.name} is here and verified: {Path(next(iter(files.values()))).parent}")


def train(args: Namespace) -> None:
    if args.resume:
        if not args.out:
            raise UserError("--resume needs --out, the run folder to go on with")
        out = Path(args.out)
        saved = read_json(out / "config.json")
        config = TrainConfig(**saved["train"])
        overrides = {name: _tuples(value) for name, value in saved["model"].items() if name != "kind"}
    else:
        config, overrides = _new_training(args)
        out = Path(args.out or f"runs/{config.model}-seed{config.seed}")
        # Of several processes only the first looks: it may have begun to write before the others are here.
        if os.environ.get("RANK", "0") == "0" and (out / "config.json").exists():
            raise UserError(f"{out} already holds a run: go on with --resume, or choose another --out")
    result = run_training(config, out, overrides, args.tensorboard)
    if not result:
        return
    if args.json:
        return _print_json(result)
    print(f"{_score_line(result)} after {result['seconds']:.0f} s; the run is in {out}")


def _new_training(args: Namespace) -> tuple[TrainConfig, dict[str, Any]]:
    if not args.model:
        raise UserError("which model? See 'torchcaps models'")
    find(args.model)
    if args.data:
        named.find(args.data)
    for name in ("epochs", "max_seconds", "batch", "lr", "pairs", "iterations"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be more than 0, not {value}")
    if args.epochs is None and args.max_seconds is None:
        raise UserError("how long? Give --epochs N or --max-seconds S")
    known = {field.name for field in fields(TrainConfig)} - {"model"}
    config = defaults_for(args.model, **{name: value for name, value in vars(args).items() if name in known})
    overrides: dict[str, Any] = {}
    if args.recipe:
        overrides["recipe"] = args.recipe
    if args.no_reconstruction:
        overrides["decoder"] = None
    options = {name: getattr(args, name) for name in ("iterations", "gradient") if getattr(args, name) is not None}
    if options:
        overrides["routing_options"] = {**getattr(find(args.model).config, "routing_options", {}), **options}
    configure(args.model, **overrides)
    return config, overrides


def evaluate(args: Namespace) -> None:
    model, name, data = _load(args.run)
    result = score(model, named.load_test_set(args.data or data, args.pairs))
    result |= {"model": name, "parameters": count_parameters(model)}
    if args.json:
        return _print_json(result)
    print(_score_line(result))


def predict(args: Namespace) -> None:
    model, _, data = _load(args.run)
    spec = named.find(data)
    handwritten = spec.files in ("mnist", "mnist-mini")
    pixels = [to_pixels(open_image(path), model.config.image, handwritten) for path in args.images]
    rows = []
    for path, picture in zip(args.images, pixels, strict=True):
        with torch.no_grad():
            lengths = model(picture[None]).lengths[0]
        top = lengths.topk(model.config.digits)
        found = [spec.classes[i] for value, i in zip(*(x.tolist() for x in top), strict=True) if value >= NONE_OF_THESE]
        rows.append(
            {
                "image": str(path),
                "label": found if model.config.digits > 1 else (found or [None])[0],
                "confidence": round(top.values.min().item(), 6),
                "lengths": {spec.classes[i]: round(value, 6) for i, value in enumerate(lengths.tolist())},
            }
        )
    if args.json:
        return _print_json(rows)
    for row in rows:
        label = " and ".join(row["label"]) if isinstance(row["label"], list) else row["label"]
        print(f"{row['image']}: {label or 'none of these'} ({row['confidence']:.1%})")


def figures(args: Namespace) -> None:
    from torchcaps.report import write_report

    report = write_report(Path(args.run))
    if args.json:
        return _print_json({"report": str(report), "figures": sorted(str(f) for f in report.parent.glob("figures/*"))})
    print(f"The report is {report}")


def serve(args: Namespace) -> None:
    from torchcaps.web.server import serve as run_server

    model, name, data = _load(args.run)
    run_server(model, name, data, port=args.port, open_browser=not args.no_open)


def bench(args: Namespace) -> None:
    from torchcaps.bench import run

    rows = run(args.names, args.repeats)
    if args.json:
        return _print_json(rows)
    shown = [(row["name"], f"{row['plain_ms']:,.1f}", f"{row['ours_ms']:,.1f}", f"{row['ratio']:.2f}") for row in rows]
    _print_table(("benchmark", "plain ms", "ours ms", "ratio"), shown)


def demo(args: Namespace) -> None:
    from torchcaps.report import write_report

    out = Path(args.out)
    config = defaults_for("capsnet-multimnist-small", data="multimnist-iou80", max_seconds=args.max_seconds)
    print("Learning to take two overlapping handwritten digits apart.", file=sys.stderr)
    result = run_training(config, out)
    report = write_report(out)
    print(f"{_score_line(result)} after {result['seconds']:.0f} s of training.")
    print(f"Look at it:   {report.resolve()}")
    print(f"Play with it: torchcaps serve {out}")
    print("Go on:        torchcaps train capsnet-mnist-small --max-seconds 180, torchcaps --help")


def _load(run_or_model: str) -> tuple[Model, str, str]:
    """A trained model, its name and the data it was made for, from a run folder or from the package's weights."""
    if Path(run_or_model).is_dir():
        model, config = load_run(run_or_model)
        return model, config["train"]["model"], config["train"]["data"]
    if run_or_model not in MODELS:
        raise UserError(f"{run_or_model} is neither a run folder nor a model; with weights: {', '.join(PRETRAINED)}")
    return create_model(run_or_model, pretrained=True).eval(), run_or_model, find(run_or_model).data


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _score_line(result: dict[str, Any]) -> str:
    text = f"{result['model']} on {result['data']}: {result['accuracy']:.2%} of {result['images']:,} images right"
    return f"{text} (both digits)" if "at_least_one" in result else text


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(title, no_wrap=bool(title))
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
