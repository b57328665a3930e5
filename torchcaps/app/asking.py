"""The commands that ask a trained network: evaluate, predict, explain, export, serve, publish."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.analysis import corruptions
from torchcaps.analysis.answers import NONE_OF_THESE, Row, label_text
from torchcaps.analysis.evaluate import by_class
from torchcaps.analysis.evaluate import evaluate as score
from torchcaps.app.output import print_json, print_table, score_line
from torchcaps.app.predict import FORMATS, batches_of
from torchcaps.app.predict import predict as predict_files
from torchcaps.core.errors import UserError
from torchcaps.core.files import write_json
from torchcaps.core.progress import say
from torchcaps.core.text import printable
from torchcaps.data import DataSet, resolve, sources
from torchcaps.data.readers.pictures import open_image, read_pixels
from torchcaps.models.config import Model
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import MODELS, count_parameters, create_model, find
from torchcaps.training.config import config_from
from torchcaps.training.records import read_config, read_result
from torchcaps.training.runs import load_run, read_answers, run_data
from torchcaps.training.train import resolve_device

if TYPE_CHECKING:
    from torchcaps.analysis.neighbours import PoseIndex

FLAGSHIP = "capsnet-multimnist-fine"
SCORES = (
    "accuracy", "at_least_one", "per_digit", "reconstruction_mse", "segmentation_iou", "metric", "images", "data",
)  # fmt: skip


def evaluate(args: Namespace) -> None:
    """The answers that the run kept are scored where nothing else is asked for: they are those of the same weights."""
    if args.beside and not args.corruptions:
        raise UserError("--beside goes with --corruptions, the table that two networks are compared in")
    model, name, data = _load(args.run, args.device)
    asked = resolve(args.data, like=data) if args.data else data
    if (asked.image, len(asked.classes)) != (model.config.image, model.config.classes):
        raise UserError(f"{name} takes images of {model.config.image}, {args.data} has {asked.image}")
    result = None if args.data else _known_score(Path(args.run), data, args.pairs)
    result = result or score(model, asked.test(args.pairs), classes=asked.classes)
    result |= {"model": name, "parameters": count_parameters(model)}
    if args.corruptions:
        result |= _spoilt(args, model, asked, data)
    if args.novel:
        from torchcaps.analysis.novelty import novelty, strange_images

        result["novelty"] = novelty(
            model, asked.test(args.pairs), strange_images(args.novel, model.config.image, data.handwritten)
        )
    if args.json:
        return print_json(result)
    print(score_line(result))
    if args.novel:
        for by in ("length", "reconstruction"):
            if (found := result["novelty"].get(f"auroc_{by}")) is not None:
                print(printable(f"told from {args.novel} by {by}: {found:.3f} (AUROC; 0.5 is chance)"))
    if args.corruptions:
        tables = [(name, result["robustness"])]
        tables += [(found["model"], found) for found in [result.get("beside")] if found]
        print_table(*corruptions.lines(tables))


def _spoilt(args: Namespace, model: Model, asked: DataSet, own: DataSet) -> dict[str, Any]:
    """The accuracy on spoilt images, of a second network too; a run keeps that of its own data in a file."""
    run, test = Path(args.run), asked.test(args.pairs)
    found: dict[str, Any] = {}
    if args.beside:
        other, name, _ = _load(args.beside, args.device)
        if other.config.image != model.config.image or other.config.classes != model.config.classes:
            raise UserError(f"{args.beside} takes images of {other.config.image}, not of {model.config.image}")
        found["beside"] = {"model": name, **corruptions.robustness(other, test)}
    found["robustness"] = corruptions.robustness(model, test)
    if run.is_dir() and asked is own:
        weights = read_result(run)["weights_sha256"]
        write_json(run / corruptions.FILE, {"weights_sha256": weights, **found})
    return found


def _known_score(run: Path, data: DataSet, pairs: int) -> dict[str, Any] | None:
    """What is kept of the test at the end of a run, if it was of as many images as are asked for."""
    kept = read_answers(run) if run.is_dir() else None
    if kept is None or len(kept[0]) != (result := read_result(run))["images"]:
        return None
    if data.paired and result["images"] != pairs:
        return None
    return {key: result[key] for key in SCORES if key in result} | by_class(*kept, data.classes)


def predict(args: Namespace) -> None:
    model, _, data = _load(args.run, args.device)
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
            print(f"torchcaps: {printable(str(found))}", file=sys.stderr, flush=True)
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

    model, name, data = _load(args.run, args.device, args.data)
    explainer = Explainer(model)
    images = [
        (str(path), open_image(path), read_pixels(path, model.config.image, data.handwritten)) for path in args.images
    ]
    notes = []
    try:
        explainer.index = _pose_index(args.run, model, data)
    except UserError as error:
        notes.append(f"Similar training images are not shown: {error}.")
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
        return print_json(rows)
    answers = [f"{row['image']}: {label_text(row)} ({row['confidence']:.1%})" for row in rows]
    for line in (*answers, *notes, *(f"The explanation is {path}" for path in pages)):
        print(printable(line))


def _pose_index(run_or_model: str, model: Model, data: DataSet) -> "PoseIndex":
    from torchcaps.analysis.neighbours import FILE, pose_index

    run = Path(run_or_model)
    if run.is_dir():
        held_out = config_from(read_config(run)["train"], run).validation
        return pose_index(model, data, read_result(run)["weights_sha256"], run / FILE, held_out)
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
        return print_json(result)
    worst = max(result["parity"].values())
    print(f"{printable(result['file'])}: {result['bytes'] / 1e6:.1f} MB, lengths within {worst:.1e} of the model's")


def serve(args: Namespace) -> None:
    from torchcaps.app.web.server import serve as run_server

    model, name, data = _load(args.run, args.device, args.data)
    if data.own and not data.is_here():
        say("There are no pictures to begin with: the images of the run are not here, or it was not made here (--data)")
    how = {"port": args.port, "open_browser": not args.no_open, "with_token": not args.no_token, "as_json": args.json}
    run_server(model, name, data, _accuracy(args.run, data), **how)


def publish(args: Namespace) -> None:
    from torchcaps.app.publish import check_folder, find_runtime, write_site
    from torchcaps.app.web.engine import Engine

    out = Path(args.out)
    check_folder(out)
    engines = {}
    for asked in dict.fromkeys(args.run or [FLAGSHIP, *(name for name in PRETRAINED if name != FLAGSHIP)]):
        model, name, data = _load(asked)
        called = Path(asked).resolve().name if Path(asked).is_dir() else name
        while called in engines:
            called += "-2"
        engines[called] = Engine(model, name, data, _accuracy(asked, data))
    runtime = find_runtime(Path(args.runtime) if args.runtime else None)
    result = write_site(engines, out, runtime, samples=not args.no_samples)
    if args.json:
        return print_json(result)
    names = ", ".join(model["id"] for model in result["models"])
    whole, first, more = (f"{result[key] / 1e6:.1f}" for key in ("bytes", "first_visit_bytes", "webgpu_bytes"))
    print(printable(f"{out}: {names}; {whole} MB, of which a first visit loads {first}, and {more} more for WebGPU"))
    print(printable(f"Try it: python -m http.server --directory {out}"))


def _accuracy(run_or_model: str, data: DataSet) -> float | None:
    run = Path(run_or_model)
    if run.is_dir():
        return read_result(run).get("accuracy")
    scores = PRETRAINED[run_or_model]["scores"]
    return scores.get(data.name, next(iter(scores.values())))["accuracy"]


def _load(run_or_model: str, device: str = "cpu", images: str | None = None) -> tuple[Model, str, DataSet]:
    """A trained model, its name and the data it was made for, from a run folder or from the package's weights.

    `images` says where the images are that a run was trained on, if they are one's own.
    """
    place = resolve_device(device)
    if Path(run_or_model).is_dir():
        model, config = load_run(run_or_model)
        return model.to(place), config["train"]["model"], run_data(Path(run_or_model), config, images)
    if run_or_model not in MODELS:
        raise UserError(f"{run_or_model} is neither a run folder nor a model; with weights: {', '.join(PRETRAINED)}")
    if images is not None:
        raise UserError("--data goes with a run folder whose network was trained on your own images")
    model = create_model(run_or_model, pretrained=True).eval().to(place)
    return model, run_or_model, resolve(find(run_or_model).data)
