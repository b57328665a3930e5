"""The commands that only list. They answer at once: nothing here imports torch."""

from argparse import Namespace

from torchcaps.app import listings
from torchcaps.app.output import print_json, print_table
from torchcaps.experiments import EXPERIMENTS


def models(args: Namespace) -> None:
    rows = listings.rows("models")
    if args.json:
        return print_json([{key: row[key] for key in ("name", "parameters", "pretrained")} for row in rows])
    shown = [(row["name"], f"{row['parameters']:,}", "yes" if row["pretrained"] else "", row["about"]) for row in rows]
    print_table(("model", "parameters", "weights", ""), shown)


def routings(args: Namespace) -> None:
    rows = listings.rows("routings")
    if args.json:
        return print_json(rows)
    shown = [
        (row["name"], ", ".join(f"{name}={value}" for name, value in row["options"].items()), row["paper"])
        for row in rows
    ]
    print_table(("routing", "options", "paper"), shown)


def data(args: Namespace) -> None:
    rows = listings.rows("data")
    if args.json:
        return print_json(rows)
    shown = [(row["name"], "x".join(map(str, row["image"])), str(row["classes"]), row["about"]) for row in rows]
    print_table(("data set", "image", "classes", ""), shown)


def experiments(args: Namespace) -> None:
    if args.json:
        return print_json([{"name": name, "about": entry.about} for name, entry in EXPERIMENTS.items()])
    print_table(("experiment", ""), [(name, entry.about) for name, entry in EXPERIMENTS.items()])
