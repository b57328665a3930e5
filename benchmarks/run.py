"""Measure everything and keep it: `python benchmarks/run.py [--write-docs]`.

Writes `results/bench/bench.json` (all benchmarks, with command, machine and versions) and, with `--write-docs`, the
table between the markers in `docs/performance.md`.
"""

import argparse
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

from torchcaps import __version__
from torchcaps.bench import run
from torchcaps.runs import processor, read_json, write_json

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "results" / "bench" / "bench.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def measure(names: list[str], repeats: int) -> dict[str, Any]:
    start = time.perf_counter()
    rows = run(names, repeats)
    return {
        "command": " ".join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "seed": 0,
        "seconds": round(time.perf_counter() - start, 1),
        "machine": {"processor": processor(), "threads": torch.get_num_threads(), "system": platform.system()},
        "versions": {"torchcaps": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown, under a line that says where they come from."""
    machine, versions = result["machine"], result["versions"]
    lines = [
        f"{machine['processor']}, {machine['threads']} threads, torch {versions['torch']}; "
        f"`{result['command']}`, {result['seconds']:,.0f} s.",
        "",
        "| | batch | repeats | plain ms (range) | ours ms (range) | plain / ours | first call ms | peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        plain, ours = (
            "{:,.1f} ({:,.1f} to {:,.1f})".format(row[f"{twin}_ms"], *row[f"{twin}_spread_ms"])
            for twin in ("plain", "ours")
        )
        lines.append(
            f"| {row['name']} | {row['batch']} | {row['repeats']} | {plain} | {ours} | **{row['ratio']:.2f}** "
            f"| {row['plain_first_ms']:,.0f} / {row['ours_first_ms']:,.0f} "
            f"| {row['plain_mb']:,.0f} / {row['ours_mb']:,.0f} |"
        )
    return "\n".join(lines)


def write_docs(result: dict[str, Any], page: Path = PAGE) -> None:
    text = page.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{table(result)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which benchmarks (default: all)")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--no-run", action="store_true", help="only rewrite the table from the stored result")
    args = parser.parse_args()
    if not args.no_run:
        write_json(RESULT, measure(args.names, args.repeats))
    if args.write_docs:
        write_docs(read_json(RESULT))


if __name__ == "__main__":
    main()
