"""The commands that train, draw, measure and reproduce. Those that ask a trained network are in `asking.py`."""

import sys
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchcaps.app.output import print_json, print_table, score_line
from torchcaps.core.errors import UserError, argument
from torchcaps.core.text import printable
from torchcaps.data import DATA
from torchcaps.data.folder import RECORD
from torchcaps.data.sources.catalogue import FILES
from torchcaps.data.transforms import Augmentation
from torchcaps.experiments import EXPERIMENTS
from torchcaps.models.registry import configure, find
from torchcaps.training.fit import fit
from torchcaps.training.recipes import data_for
from torchcaps.training.records import read_config
from torchcaps.training.runs import run_data
from torchcaps.training.train import go_on

TRAINING = (
    "epochs", "steps", "max_seconds", "seed", "batch", "lr", "muon_factor", "optimiser", "schedule", "warmup",
    "average", "clip", "validation", "pairs", "balance", "device", "checkpoint_seconds",
)  # fmt: skip
"""Flags of `train` that are keywords of `fit`."""
CHANGEABLE = ("epochs", "steps", "max_seconds", "lr", "checkpoint_seconds", "device")
"""Those that `--resume` takes."""
HOW = ("does", "command", "out", "resume", "quiet", "json", "tensorboard")


def data_fetch(args: Namespace) -> None:
    if args.name not in DATA:
        raise UserError(f"'{args.name}' cannot be fetched; there are {', '.join(DATA)}")
    files = {key: str(path) for key, path in DATA[args.name].fetch().items()}
    if args.json:
        return print_json({"name": args.name, "files": files, "sha256": DATA[args.name].hashes()})
    if not files:
        return print(f"{args.name} is drawn when it is needed: there is nothing to fetch")
    verified = all(key in FILES and FILES[key].sha256 for key in files)
    place = printable(str(Path(next(iter(files.values()))).parent))
    print(f"{args.name} is here{' and verified' if verified else ', with no published hash to verify it by'}: {place}")


def train(args: Namespace) -> None:
    if args.resume:
        if not args.out:
            raise UserError("--resume needs --out, the run folder to go on with")
        out = Path(args.out)
        images = args.data if (out / RECORD).exists() else None
        result = go_on(out, **_changes(args, out), images=images, quiet=args.quiet, tensorboard=args.tensorboard)
    else:
        out, result = _new_training(args)
    if not result:
        return
    if args.json:
        return print_json(result)
    print(f"{score_line(result)} after {result['seconds']:.0f} s; the run is in {printable(str(out))}")


def _changes(args: Namespace, run: Path) -> dict[str, Any]:
    """What a run is gone on with. A flag that would change anything else is refused, not ignored."""
    saved = read_config(run)
    network, training = saved["model"], saved["train"]
    options = network.get("routing_options")
    begun = {**network, **(options if isinstance(options, dict) else {}), **(training.get("augment") or {}), **training}
    begun |= {"no_reconstruction": network.get("decoder") is None, "augment": args.augment, "size": args.size}
    given = {name: value for name, value in vars(args).items() if value not in (None, False)}
    if (run / RECORD).exists():
        given.pop("data", None)  # the record says which images, this only where
    fixed = [name for name in given if name not in (*CHANGEABLE, *HOW) and given[name] != begun.get(name)]
    if fixed:
        flags = ", ".join("the model" if name == "model" else argument(name) for name in fixed)
        raise UserError(f"{run} was begun with another value of {flags}: leave it out, or begin another run")
    return {name: getattr(args, name) for name in CHANGEABLE if getattr(args, name) != "auto"}


def _new_training(args: Namespace) -> tuple[Path, dict[str, Any]]:
    if not args.model:
        raise UserError("which model? See 'torchcaps models'")
    known = data_for(find(args.model), args.data, args.size)
    overrides: dict[str, Any] = {"recipe": args.recipe, "routing": args.routing, "backbone": args.backbone}
    overrides = {name: value for name, value in overrides.items() if value}
    if args.no_reconstruction:
        overrides["decoder"] = None
    if args.iterations is not None and args.iterations < 1:
        raise UserError(f"--iterations must be more than 0, not {args.iterations}")
    options = {name: getattr(args, name) for name in ("iterations", "gradient") if getattr(args, name) is not None}
    if options:
        usual = getattr(configure(args.model, **overrides), "routing_options", {})
        overrides["routing_options"] = {**usual, **options}
    amounts = {"preset": args.augment} | {field.name: getattr(args, field.name) for field in fields(Augmentation)}
    amounts = {name: value for name, value in amounts.items() if value is not None}
    own = f"-{known.title}" if known.own else ""
    out = Path(args.out or f"runs/{args.model}{own}-seed{args.seed or 0}")
    result = fit(
        args.model,
        known,
        out=out,
        overrides=overrides,
        augment={"preset": "own", **amounts} if amounts else None,
        pretrained=args.pretrained,
        resume=False,
        quiet=args.quiet,
        tensorboard=args.tensorboard,
        **{name: getattr(args, name) for name in TRAINING},
    )
    return out, result


def figures(args: Namespace) -> None:
    from torchcaps.viz.report import write_report

    run = Path(args.run)
    data = None if args.data is None else run_data(run, read_config(run), args.data)
    report = write_report(run, data=data)
    if args.json:
        return print_json({"report": str(report), "figures": sorted(str(f) for f in report.parent.glob("figures/*"))})
    print(printable(f"The report is {report}"))


def doctor(args: Namespace, measured: bool = False) -> None:
    from torchcaps.app.shapes import shapes
    from torchcaps.kernels import report

    state, rows = report.state(), report.convolutions(shapes(), measured)
    others = report.others(rows)
    if args.json:
        return print_json({**state, "convolutions": rows, "other_choices": others})
    print(report.text(state, rows, others))


def bench(args: Namespace) -> None:
    from torchcaps.app.bench import run

    if args.kernels:
        return doctor(args, measured=True)
    rows = run(args.names, args.repeats)
    if args.json:
        return print_json(rows)
    columns = {"plain ms": "plain_ms", "compiled ms": "compiled_ms", "ours ms": "ours_ms"}
    shown = [
        (
            row["name"],
            *(f"{row[key]:,.1f}" if key in row else "-" for key in columns.values()),
            f"{row['ratio']:.2f}",
            f"{row['best_ratio']:.2f}",
        )
        for row in rows
    ]
    print_table(("benchmark", *columns, "plain / ours", "better twin / ours"), shown)


def demo(args: Namespace) -> None:
    from torchcaps.viz.report import write_report

    out = Path(args.out)
    print("Learning to take two overlapping handwritten digits apart.", file=sys.stderr)
    result = fit("capsnet-multimnist-fine", "multimnist-iou80", out=out, max_seconds=args.max_seconds)
    report = write_report(out)
    if args.json:
        return print_json({**result, "run": str(out), "report": str(report)})
    print(f"{score_line(result)} after {result['seconds']:.0f} s of training.")
    print(f"Look at it:   {printable(str(report.resolve()))}")
    print(f"Play with it: torchcaps serve {printable(str(out))}")
    print("Go on:        torchcaps train capsnet-mnist-small --max-seconds 180, torchcaps --help")


def reproduce(args: Namespace) -> None:
    from torchcaps.experiments import reproduce as runner
    from torchcaps.experiments import words

    if args.name is None:
        raise UserError("which experiment? See 'torchcaps reproduce --list'")
    names = list(EXPERIMENTS) if args.name == "all" else [args.name]
    if args.plan:
        return _plan(names, args)
    summaries: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in names:
        try:
            summary = runner.reproduce(name, args.preset, args.trials, jobs=args.jobs, as_is=args.as_is)
        except Exception as error:  # of all, one that breaks must not cost what the others take hours for
            if args.name != "all":
                raise
            what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            print(f"torchcaps: {name}: {printable(what)}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        summaries.append(summary)
        if not args.json:
            print("\n".join(words.lines(summary)))
    if args.json:
        print_json(summaries if args.name == "all" else summaries[0])
    if failed:
        print(f"torchcaps: {len(failed)} of {len(names)} failed: {', '.join(failed)}", file=sys.stderr)
        sys.exit(1)


def stale(args: Namespace) -> None:
    from torchcaps.experiments.freshness import stale_results

    found = stale_results(Path("results"))
    if args.json:
        return print_json([one._asdict() for one in found])
    shown = [(one.result, f"{one.stale} of {one.parts}", ", ".join(one.commits)) for one in found]
    print_table(("result", "older than its code", "commit"), shown)


def _plan(names: list[str], args: Namespace) -> None:
    from torchcaps.experiments import reproduce as runner
    from torchcaps.experiments.costs import GPU

    plans = [trial for name in names for trial in runner.plan(name, args.preset, args.trials)]
    if args.json:
        return print_json(plans)
    shown = [
        (
            p["name"],
            p["model"],
            p["data"],
            str(p["seed"]),
            f"{p['steps']:,}",
            _hours(p),
            f"{p['overrides']} {p['training']}",
        )
        for p in plans
    ]
    whole = {"hours": None if any(p["hours"] is None for p in plans) else sum(p["hours"] for p in plans)}
    total = (f"{len(plans)} trainings", "", "", "", f"{sum(p['steps'] for p in plans):,}", _hours(whole), "")
    print_table(("training", "model", "data", "seed", "steps", "hours", ""), [*shown, total])
    print("Hours are those of two cores, with --jobs 2, from processor time measured on one kind of machine.")
    if (hours := whole["hours"]) is not None:
        print(f"A GPU would take some {hours / GPU:,.2f} hours: an estimate from its arithmetic alone, never measured.")


def _hours(cost: dict[str, Any]) -> str:
    return "?" if cost["hours"] is None else f"{cost['hours']:.2f}"
