"""The commands that train, draw and measure. Those that ask a trained network are in `asking.py`."""

import math
import os
import sys
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchcaps import data as named
from torchcaps.app.output import print_json as _print_json
from torchcaps.app.output import print_table, printable
from torchcaps.app.output import score_line as _score_line
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json
from torchcaps.data import sources
from torchcaps.models.registry import configure, find
from torchcaps.training.loop import TrainConfig, defaults_for
from torchcaps.training.loop import train as run_training
from torchcaps.training.recipes import fit_to_data
from torchcaps.training.runs import prolong


def data_fetch(args: Namespace) -> None:
    if args.name not in named.DATA:
        raise UserError(f"'{args.name}' cannot be fetched; there are {', '.join(named.DATA)}")
    spec = named.find(args.name)
    files = {key: str(sources.fetch(key)) for key in sources.SETS[spec.files]}
    if args.json:
        return _print_json({"name": args.name, "files": files, "sha256": sources.hashes(spec.files)})
    if not files:
        return print(f"{args.name} is drawn when it is needed: there is nothing to fetch")
    print(f"{args.name} is here and verified: {Path(next(iter(files.values()))).parent}")


def train(args: Namespace) -> None:
    if args.resume:
        if not args.out:
            raise UserError("--resume needs --out, the run folder to go on with")
        out = Path(args.out)
        prolong(out, {"epochs": args.epochs, "max_seconds": args.max_seconds})
        saved = read_json(out / "config.json")
        config = TrainConfig(**saved["train"])
        overrides = {name: _tuples(value) for name, value in saved["model"].items() if name != "kind"}
    else:
        config, overrides = _new_training(args)
        own = "" if config.data in named.DATA else f"-{Path(config.data).stem}"
        out = Path(args.out or f"runs/{config.model}{own}-seed{config.seed}")
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
    entry = find(args.model)
    for name in ("epochs", "max_seconds", "batch", "lr", "pairs", "iterations"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be more than 0, not {value}")
    for name in ("seed", "validation", "checkpoint_seconds"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < 2**63:
            raise UserError(f"--{name.replace('_', '-')} must be 0 or more, not {value}")
    if args.epochs is None and args.max_seconds is None:
        raise UserError("how long? Give --epochs N or --max-seconds S")
    fitted = fit_to_data(entry, args)
    overrides = fitted.overrides
    known = {field.name for field in fields(TrainConfig)} - {"model"}
    given = {name: value for name, value in vars(args).items() if name in known and value is not None}
    given |= {"data": fitted.data, "augment": fitted.augment}
    config = defaults_for(args.model, **{**fitted.training, **given})
    if args.recipe:
        overrides["recipe"] = args.recipe
    if args.no_reconstruction:
        overrides["decoder"] = None
    if args.routing:
        overrides["routing"] = args.routing
    options = {name: getattr(args, name) for name in ("iterations", "gradient") if getattr(args, name) is not None}
    if options:
        usual = getattr(configure(args.model, **overrides), "routing_options", {})
        overrides["routing_options"] = {**usual, **options}
    configure(args.model, **overrides)
    if overrides.keys() & {"backbone", "design"}:
        print(f"{args.model}: {fitted.summary(config)}", file=sys.stderr, flush=True)
    return config, overrides


def figures(args: Namespace) -> None:
    from torchcaps.viz.report import write_report

    report = write_report(Path(args.run))
    if args.json:
        return _print_json({"report": str(report), "figures": sorted(str(f) for f in report.parent.glob("figures/*"))})
    print(printable(f"The report is {report}"))


def bench(args: Namespace) -> None:
    from torchcaps.app.bench import run

    rows = run(args.names, args.repeats)
    if args.json:
        return _print_json(rows)
    shown = [(row["name"], f"{row['plain_ms']:,.1f}", f"{row['ours_ms']:,.1f}", f"{row['ratio']:.2f}") for row in rows]
    print_table(("benchmark", "plain ms", "ours ms", "ratio"), shown)


def demo(args: Namespace) -> None:
    from torchcaps.viz.report import write_report

    out = Path(args.out)
    config = defaults_for("capsnet-multimnist-small", data="multimnist-iou80", max_seconds=args.max_seconds)
    print("Learning to take two overlapping handwritten digits apart.", file=sys.stderr)
    result = run_training(config, out)
    report = write_report(out)
    if args.json:
        return _print_json({**result, "run": str(out), "report": str(report)})
    print(f"{_score_line(result)} after {result['seconds']:.0f} s of training.")
    print(f"Look at it:   {report.resolve()}")
    print(f"Play with it: torchcaps serve {out}")
    print("Go on:        torchcaps train capsnet-mnist-small --max-seconds 180, torchcaps --help")


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
