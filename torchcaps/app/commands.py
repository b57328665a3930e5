"""What each command does."""

import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps import data as named
from torchcaps.analysis.answers import NONE_OF_THESE, Row, label_text
from torchcaps.analysis.evaluate import evaluate as score
from torchcaps.app.predict import FORMATS, batches_of
from torchcaps.app.predict import predict as predict_files
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json
from torchcaps.data import sources
from torchcaps.data.readers.pictures import open_image, read_pixels
from torchcaps.models.config import Model
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import MODELS, configure, count_parameters, create_model, find
from torchcaps.training.loop import TrainConfig, defaults_for
from torchcaps.training.loop import train as run_training
from torchcaps.training.recipes import fit_to_data
from torchcaps.training.runs import load_run, prolong

if TYPE_CHECKING:
    from torchcaps.analysis.neighbours import PoseIndex


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


def evaluate(args: Namespace) -> None:
    if args.pairs < 1:
        raise UserError(f"--pairs must be at least 1, not {args.pairs}")
    model, name, data = _load(args.run)
    spec = named.find(args.data if args.data in named.DATA else data)
    if (spec.image, len(spec.classes)) != (model.config.image, model.config.classes):
        raise UserError(f"{name} takes images of {model.config.image}, {args.data} has {spec.image}")
    result = score(model, named.load_test_set(args.data or data, args.pairs, like=spec), classes=spec.classes)
    result |= {"model": name, "parameters": count_parameters(model)}
    if args.json:
        return _print_json(result)
    print(_score_line(result))


def predict(args: Namespace) -> None:
    model, _, data = _load(args.run)
    spec = named.find(data)
    answers = predict_files(model, spec.classes, batches_of(args.images), spec.handwritten)
    form = "json" if args.json else args.format
    for text in FORMATS[form](_readable(answers), spec.classes):
        sys.stdout.write(text)
        sys.stdout.flush()


def _readable(answers: Iterable[Row | UserError]) -> Iterator[Row]:
    """The answers; a line for every file that cannot be read, and a failure if there is no other."""
    good = bad = 0
    for found in answers:
        if isinstance(found, UserError):
            bad += 1
            print(f"torchcaps: {found}", file=sys.stderr, flush=True)
        else:
            good += 1
            yield found
    if bad and not good:
        sys.exit(2)
    if bad:
        print(f"torchcaps: {bad:,} of {good + bad:,} files could not be read", file=sys.stderr)


def explain(args: Namespace) -> None:
    from torchcaps.analysis.explain import Explainer, to_json
    from torchcaps.core.files import write_bytes
    from torchcaps.viz.report.explanation import explanation_page, page_names

    model, name, data = _load(args.run)
    spec = named.find(data)
    explainer = Explainer(model)
    images = [
        (str(path), open_image(path), read_pixels(path, model.config.image, spec.handwritten)) for path in args.images
    ]
    notes = []
    try:
        explainer.index = _pose_index(args.run, model, data)
    except UserError as error:
        notes.append(f"Similar training images are not shown: {error}.")
    found = [explainer.explain(*image) for image in images]
    rows = [to_json(one, spec.classes) for one in found]
    pages = [Path(args.out)] if args.out else page_names(args.images)
    for number, path in enumerate(pages):
        part = slice(None) if args.out else slice(number, number + 1)
        about = f"{name} on {named.title(data)}"
        page = explanation_page(found[part], spec.classes, about, rows[part], notes, explainer.index)
        write_bytes(path, page.encode(errors="replace"))
    rows = [{**row, "page": str(pages[n % len(pages)]), "notes": notes} for n, row in enumerate(rows)]
    if args.json:
        return _print_json(rows)
    for row in rows:
        print(f"{row['image']}: {label_text(row)} ({row['confidence']:.1%})")
    for line in (*notes, *(f"The explanation is {path}" for path in pages)):
        print(line)


def _pose_index(run_or_model: str, model: Model, data: str) -> "PoseIndex":
    from torchcaps.analysis.neighbours import FILE, pose_index

    run = Path(run_or_model)
    if run.is_dir():
        held_out = read_json(run / "config.json")["train"]["validation"]
        return pose_index(model, data, read_json(run / "result.json")["weights_sha256"], run / FILE, held_out)
    place = sources.cache_dir() / "neighbours" / f"{run_or_model}.safetensors"
    return pose_index(model, data, PRETRAINED[run_or_model]["sha256"], place)


def export(args: Namespace) -> None:
    from torchcaps.app.export import SUFFIXES, Record
    from torchcaps.app.export import export as write_export

    model, name, data = _load(args.run)
    spec = named.find(data)
    preparation = "digit" if spec.handwritten and model.config.image[0] == 1 else "resize"
    record = Record(
        name, named.title(data), model.config.image, spec.classes, model.config.objects, NONE_OF_THESE, preparation
    )
    folder = Path(args.run)
    usual = folder / f"model{SUFFIXES[args.format]}" if folder.is_dir() else Path(f"{name}{SUFFIXES[args.format]}")
    result = write_export(model, record, args.format, Path(args.out) if args.out else usual)
    if args.json:
        return _print_json(result)
    worst = max(result["parity"].values())
    print(f"{result['file']}: {result['bytes'] / 1e6:.1f} MB, lengths within {worst:.1e} of the model's")


def figures(args: Namespace) -> None:
    from torchcaps.viz.report import write_report

    report = write_report(Path(args.run))
    if args.json:
        return _print_json({"report": str(report), "figures": sorted(str(f) for f in report.parent.glob("figures/*"))})
    print(f"The report is {report}")


def serve(args: Namespace) -> None:
    from torchcaps.app.web.server import serve as run_server

    model, name, data = _load(args.run)
    run = Path(args.run)
    known = read_json(run / "result.json") if run.is_dir() else PRETRAINED[name]["scores"][data]
    run_server(model, name, data, known.get("accuracy"), port=args.port, open_browser=not args.no_open)


def bench(args: Namespace) -> None:
    from torchcaps.app.bench import run

    rows = run(args.names, args.repeats)
    if args.json:
        return _print_json(rows)
    shown = [(row["name"], f"{row['plain_ms']:,.1f}", f"{row['ours_ms']:,.1f}", f"{row['ratio']:.2f}") for row in rows]
    _print_table(("benchmark", "plain ms", "ours ms", "ratio"), shown)


def reproduce(args: Namespace) -> None:
    from torchcaps.experiments import EXPERIMENTS, words
    from torchcaps.experiments import reproduce as runner

    if args.trials is not None and args.trials < 1:
        raise UserError(f"--trials must be at least 1, not {args.trials}")
    if args.jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {args.jobs}")
    names = list(EXPERIMENTS) if args.name == "all" else [args.name]
    if args.plan:
        plans = [trial for name in names for trial in runner.plan(name, args.preset, args.trials)]
        if args.json:
            return _print_json(plans)
        shown = [(p["name"], p["model"], p["data"], str(p["seed"]), f"{p['overrides']} {p['training']}") for p in plans]
        return _print_table(("training", "model", "data", "seed", ""), shown)
    summaries = []
    for name in names:
        try:
            summary = runner.reproduce(name, args.preset, args.trials, jobs=args.jobs)
        except UserError as error:
            if args.name != "all":
                raise
            print(f"torchcaps: {error}", file=sys.stderr)
            continue
        summaries.append(summary)
        if not args.json:
            print("\n".join(words.lines(summary)))
    if args.json:
        _print_json(summaries if args.name == "all" else summaries[0])


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
