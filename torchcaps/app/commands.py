"""What each command does."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.analysis.answers import NONE_OF_THESE, Row, label_text
from torchcaps.analysis.evaluate import by_class
from torchcaps.analysis.evaluate import evaluate as score
from torchcaps.app.predict import FORMATS, batches_of
from torchcaps.app.predict import predict as predict_files
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json
from torchcaps.data import DATA, DataSet, resolve, sources
from torchcaps.data.readers.pictures import open_image, read_pixels
from torchcaps.data.transforms import Augmentation
from torchcaps.models.config import Model
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import MODELS, configure, count_parameters, create_model, find
from torchcaps.training.fit import fit
from torchcaps.training.recipes import data_for
from torchcaps.training.runs import load_run, read_answers, run_data
from torchcaps.training.train import go_on

if TYPE_CHECKING:
    from torchcaps.analysis.neighbours import PoseIndex

TRAINING = (
    "epochs", "steps", "max_seconds", "seed", "batch", "lr", "optimiser", "schedule", "warmup", "average", "validation",
    "pairs", "balance", "device", "checkpoint_seconds",
)  # fmt: skip
"""Flags of `train` that are keywords of `fit`."""
SCORES = (
    "accuracy", "at_least_one", "per_digit", "reconstruction_mse", "segmentation_iou", "metric", "images", "data",
)  # fmt: skip


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
        {"name": name, "image": data.image, "classes": len(data.classes), "about": data.about}
        for name, data in DATA.items()
    ]
    if args.json:
        return _print_json(rows)
    shown = [(row["name"], "x".join(map(str, row["image"])), str(row["classes"]), row["about"]) for row in rows]
    _print_table(("data set", "image", "classes", ""), shown)


def data_fetch(args: Namespace) -> None:
    if args.name not in DATA:
        raise UserError(f"'{args.name}' cannot be fetched; there are {', '.join(DATA)}")
    files = {key: str(path) for key, path in DATA[args.name].fetch().items()}
    if args.json:
        return _print_json({"name": args.name, "files": files, "sha256": DATA[args.name].hashes()})
    if not files:
        return print(f"{args.name} is drawn when it is needed: there is nothing to fetch")
    print(f"{args.name} is here and verified: {Path(next(iter(files.values()))).parent}")


def train(args: Namespace) -> None:
    if args.resume:
        if not args.out:
            raise UserError("--resume needs --out, the run folder to go on with")
        out, budget = Path(args.out), {name: getattr(args, name) for name in ("epochs", "steps", "max_seconds")}
        result = go_on(out, **budget, quiet=args.quiet, tensorboard=args.tensorboard)
    else:
        out, result = _new_training(args)
    if not result:
        return
    if args.json:
        return _print_json(result)
    print(f"{_score_line(result)} after {result['seconds']:.0f} s; the run is in {out}")


def _new_training(args: Namespace) -> tuple[Path, dict[str, Any]]:
    if not args.model:
        raise UserError("which model? See 'torchcaps models'")
    known = data_for(find(args.model), args.data, args.size)
    overrides: dict[str, Any] = {"recipe": args.recipe, "routing": args.routing}
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
        resume=False,
        quiet=args.quiet,
        tensorboard=args.tensorboard,
        **{name: getattr(args, name) for name in TRAINING},
    )
    return out, result


def evaluate(args: Namespace) -> None:
    """The answers that the run kept are scored where nothing else is asked for: they are those of the same weights."""
    if args.pairs < 1:
        raise UserError(f"--pairs must be at least 1, not {args.pairs}")
    model, name, data = _load(args.run)
    asked = resolve(args.data, like=data) if args.data else data
    if (asked.image, len(asked.classes)) != (model.config.image, model.config.classes):
        raise UserError(f"{name} takes images of {model.config.image}, {args.data} has {asked.image}")
    result = None if args.data else _known_score(Path(args.run), data, args.pairs)
    result = result or score(model, asked.test(args.pairs), classes=asked.classes)
    result |= {"model": name, "parameters": count_parameters(model)}
    if args.json:
        return _print_json(result)
    print(_score_line(result))


def _known_score(run: Path, data: DataSet, pairs: int) -> dict[str, Any] | None:
    """What is kept of the test at the end of a run, if it was of as many images as are asked for."""
    kept = read_answers(run) if run.is_dir() else None
    if kept is None or len(kept[0]) != (result := read_json(run / "result.json"))["images"]:
        return None
    if data.paired and result["images"] != pairs:
        return None
    return {key: result[key] for key in SCORES if key in result} | by_class(*kept, data.classes)


def predict(args: Namespace) -> None:
    model, _, data = _load(args.run)
    answers = predict_files(model, data.classes, batches_of(args.images), data.handwritten)
    form = "json" if args.json else args.format
    for text in FORMATS[form](_readable(answers), data.classes):
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
    explainer = Explainer(model)
    images = [
        (str(path), open_image(path), read_pixels(path, model.config.image, data.handwritten)) for path in args.images
    ]
    notes = []
    try:
        explainer.index = _pose_index(args.run, model, data)
    except UserError as error:
        notes.append(f"Training images that look alike are not shown: {error}.")
    found = [explainer.explain(*image) for image in images]
    rows = [to_json(one, data.classes) for one in found]
    pages = [Path(args.out)] if args.out else page_names(args.images)
    for number, path in enumerate(pages):
        part = slice(None) if args.out else slice(number, number + 1)
        about = f"{name} on {data.title}"
        page = explanation_page(found[part], data.classes, about, rows[part], notes, explainer.index)
        write_bytes(path, page.encode(errors="replace"))
    rows = [{**row, "page": str(pages[n % len(pages)]), "notes": notes} for n, row in enumerate(rows)]
    if args.json:
        return _print_json(rows)
    for row in rows:
        print(f"{row['image']}: {label_text(row)} ({row['confidence']:.1%})")
    for line in (*notes, *(f"The explanation is {path}" for path in pages)):
        print(line)


def _pose_index(run_or_model: str, model: Model, data: DataSet) -> "PoseIndex":
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
    preparation = "digit" if data.handwritten and model.config.image[0] == 1 else "resize"
    record = Record(
        name, data.title, model.config.image, data.classes, model.config.objects, NONE_OF_THESE, preparation
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
    known = read_json(run / "result.json") if run.is_dir() else PRETRAINED[name]["scores"][data.name]
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
    print("Learning to take two overlapping handwritten digits apart.", file=sys.stderr)
    result = fit("capsnet-multimnist-small", "multimnist-iou80", out=out, max_seconds=args.max_seconds)
    report = write_report(out)
    if args.json:
        return _print_json({**result, "run": str(out), "report": str(report)})
    print(f"{_score_line(result)} after {result['seconds']:.0f} s of training.")
    print(f"Look at it:   {report.resolve()}")
    print(f"Play with it: torchcaps serve {out}")
    print("Go on:        torchcaps train capsnet-mnist-small --max-seconds 180, torchcaps --help")


def _load(run_or_model: str) -> tuple[Model, str, DataSet]:
    """A trained model, its name and the data it was made for, from a run folder or from the package's weights."""
    if Path(run_or_model).is_dir():
        model, config = load_run(run_or_model)
        return model, config["train"]["model"], run_data(Path(run_or_model), config)
    if run_or_model not in MODELS:
        raise UserError(f"{run_or_model} is neither a run folder nor a model; with weights: {', '.join(PRETRAINED)}")
    return create_model(run_or_model, pretrained=True).eval(), run_or_model, resolve(find(run_or_model).data)


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
