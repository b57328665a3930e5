"""The commands that only list. They answer at once: nothing here imports torch."""

from argparse import Namespace

from torchcaps.app import listings
from torchcaps.app.listings import Row
from torchcaps.app.output import print_json, print_table
from torchcaps.experiments import EXPERIMENTS


def models(args: Namespace) -> None:
    rows = listings.rows("models")
    shown = [
        (row["name"], f"{row['parameters']:,}", f"{row['accuracy']:.2%}" if row["pretrained"] else "", row["about"])
        for row in rows
    ]
    kept = [{key: row[key] for key in ("name", "parameters", "pretrained", "accuracy")} for row in rows]
    _show(args, kept, ("model", "parameters", "weights", ""), shown)


def routings(args: Namespace) -> None:
    rows = listings.rows("routings")
    options = [", ".join(f"{name}={value}" for name, value in row["options"].items()) for row in rows]
    shown = [(row["name"], text, row["paper"]) for row, text in zip(rows, options, strict=True)]
    _show(args, rows, ("routing", "options", "paper"), shown)


def data(args: Namespace) -> None:
    rows = listings.rows("data")
    shown = [(row["name"], "x".join(map(str, row["image"])), str(row["classes"]), row["about"]) for row in rows]
    _show(args, rows, ("data set", "image", "classes", ""), shown)


def experiments(args: Namespace) -> None:
    rows = [{"name": name, "about": entry.about} for name, entry in EXPERIMENTS.items()]
    _show(args, rows, ("experiment", ""), [(row["name"], row["about"]) for row in rows])


def _show(args: Namespace, rows: list[Row], header: tuple[str, ...], shown: list[tuple[str, ...]]) -> None:
    print_json(rows) if args.json else print_table(header, shown)
