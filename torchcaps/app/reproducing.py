"""`torchcaps reproduce`: one experiment of the papers, or all of them."""

import sys
from argparse import Namespace
from typing import Any

from torchcaps.app.output import print_json, print_table, printable
from torchcaps.core.errors import UserError
from torchcaps.experiments import EXPERIMENTS, words
from torchcaps.experiments import reproduce as runner


def reproduce(args: Namespace) -> None:
    if args.name is None:
        raise UserError("which experiment? See 'torchcaps reproduce --list'")
    names = list(EXPERIMENTS) if args.name == "all" else [args.name]
    if args.plan:
        return _plan(names, args)
    summaries: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in names:
        try:
            summary = runner.reproduce(name, args.preset, args.trials, jobs=args.jobs)
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


def _plan(names: list[str], args: Namespace) -> None:
    plans = [trial for name in names for trial in runner.plan(name, args.preset, args.trials)]
    if args.json:
        return print_json(plans)
    shown = [(p["name"], p["model"], p["data"], str(p["seed"]), f"{p['overrides']} {p['training']}") for p in plans]
    print_table(("training", "model", "data", "seed", ""), shown)
