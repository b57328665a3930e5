# PYTHON_ARGCOMPLETE_OK
"""The command line: `torchcaps` and `python -m torchcaps`.

This module only parses. What a command does is in the module that its `does` names, imported afterwards, so that
`--help` and the commands that only list do not wait for torch. Errors are one line on standard error and exit code 2;
with --json only the JSON goes to standard output.
"""

import argparse
import io
import os
import sys
from importlib import import_module
from typing import NoReturn

from torchcaps import __version__
from torchcaps.app import flags, listings
from torchcaps.app.flags import completed, data_names, device_flag, json_flag, more_than_zero
from torchcaps.app.output import printable
from torchcaps.core.errors import UserError
from torchcaps.experiments import EXPERIMENTS

EPILOG = """\
A first look:      torchcaps demo
A first training:  torchcaps train capsnet-mnist-small --max-seconds 180

environment variables:
  TORCHCAPS_DATA      where data sets are kept (default: the user's cache folder, such as ~/.cache/torchcaps)
  TORCHCAPS_KERNELS   plain, fast or auto: PyTorch's own operators, our kernels wherever they can, or whichever of
                      both is faster here (default: auto)
  OMP_NUM_THREADS     threads of the processor that one process computes with (default: all cores)
  XDG_CACHE_HOME      where caches are, among them compiled kernels (default: ~/.cache)
  CC                  the compiler of kernels in C (default: cc)

Completion of names and flags by the shell: pip install 'torchcaps[completion]', then, in bash or zsh,
  eval "$(register-python-argcomplete torchcaps)"
"""
RUN_OR_MODEL = "a run folder, or a model that comes with weights"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"torchcaps: {printable(message)} (see '{self.prog} --help')\n")


def _parser() -> Parser:
    parser = Parser(
        prog="torchcaps",
        description="Capsule networks for PyTorch: train, look inside, reproduce the papers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"torchcaps {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    def command(name: str, does: str, about: str, detail: str = "") -> Parser:
        made = commands.add_parser(name, help=about, description=detail or about)
        made.set_defaults(does=does)
        return made

    json_flag(command("models", "lists.models", "list the models and their sizes"))
    json_flag(command("routings", "lists.routings", "list the routings, their options and papers"))
    _data(command("data", "", "list data sets, or fetch one"))
    train = command(
        "train",
        "commands.train",
        "train a model into a run folder",
        "Train a model. Ctrl-C or a crash loses at most half a minute: the same command with --resume goes on.",
    )
    flags.train_flags(train)
    _evaluate(command("evaluate", "asking.evaluate", "score a run on its test set"))
    _predict(
        command(
            "predict",
            "asking.predict",
            "classify images",
            "Classify images of any size and mode: PNG, JPEG, WebP, TIFF, GIF or BMP. What cannot be read is named on "
            "standard error and passed over. A label is the longest capsule's; below a length of 0.5 it is none of "
            "these.",
        )
    )
    _explain(
        command(
            "explain",
            "asking.explain",
            "show why a capsule network answers as it does",
            "Write a page that shows what the network sees, where its answer comes from and what it resembles.",
        )
    )
    _export(
        command(
            "export",
            "asking.export",
            "write a model as one file that runs without torchcaps",
            "Write a model as ONNX or as a torch.export program; its answers are compared with the model's first.",
        )
    )
    figures = command("figures", "commands.figures", "draw the figures and the report of a run")
    figures.add_argument("run", help="a run folder")
    json_flag(figures)
    _serve(command("serve", "asking.serve", "open the playground in the browser"))
    bench = command("bench", "commands.bench", "measure plain PyTorch against torchcaps, in one run")
    bench.add_argument("names", nargs="*", help="which benchmarks (default: all)")
    bench.add_argument("--repeats", type=more_than_zero(int), default=10, help="interleaved repeats (default: 10)")
    bench.add_argument("--kernels", action="store_true", help="measure the kernels instead: every shape, every way")
    json_flag(bench)
    json_flag(command("doctor", "commands.doctor", "what this machine has, which kernels run on it, and why"))
    _reproduce(
        command(
            "reproduce",
            "reproducing.reproduce",
            "run an experiment of the papers, from data to verdict",
            "Run an experiment. What is finished is not repeated, so it can be stopped and started at any time.",
        )
    )
    demo = command(
        "demo", "commands.demo", "four minutes from nothing to a network that takes overlapping digits apart"
    )
    demo.add_argument("--out", default="runs/demo", help="the run folder (default: runs/demo)")
    demo.add_argument("--max-seconds", type=more_than_zero(float), default=240, help="how long to train (default: 240)")
    json_flag(demo)
    return parser


def _data(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="the data sets by name")
    listing.set_defaults(does="lists.data")
    json_flag(listing)
    fetch = actions.add_parser("fetch", help="bring a data set here and verify it")
    fetch.set_defaults(does="commands.data_fetch")
    completed(fetch.add_argument("name", help="such as mnist; see 'torchcaps data list'"), data_names)
    json_flag(fetch)


def _trained(parser: Parser, **options: object) -> None:
    """What a command that asks a trained network takes: which one, and where to compute."""
    completed(parser.add_argument("run", help=RUN_OR_MODEL, **options), _with_weights)  # pyright: ignore[reportArgumentType]


def _with_weights() -> list[str]:
    return [row["name"] for row in listings.models() if row["pretrained"]]


def _evaluate(parser: Parser) -> None:
    _trained(parser)
    data = parser.add_argument(
        "--data", help="another data set by name, or another folder of images of the same classes"
    )
    completed(data, data_names)
    pairs = listings.kept()["training"]["test_pairs"]
    parser.add_argument(
        "--pairs", type=more_than_zero(int), default=pairs, help=f"MultiMNIST: how many test pairs (default: {pairs})"
    )
    parser.add_argument(
        "--corruptions",
        action="store_true",
        help="also score spoilt images: specks, noise, a grey ground, other strokes, turned, cut off; a run keeps the "
        "table for its report",
    )
    beside = parser.add_argument("--beside", metavar="RUN", help="with --corruptions: another run or model to compare")
    completed(beside, _with_weights)
    device_flag(parser)
    json_flag(parser)


def _predict(parser: Parser) -> None:
    _trained(parser)
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files, folders, or - for a path in each line of standard input"
    )
    parser.add_argument("--format", choices=["table", "json", "csv"], default="table", help="(default: table)")
    device_flag(parser)
    json_flag(parser)


def _explain(parser: Parser) -> None:
    _trained(parser)
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument("--out", help="one page for all images (default: NAME-explained.html for each, here)")
    device_flag(parser)
    json_flag(parser)


def _export(parser: Parser) -> None:
    _trained(parser)
    parser.add_argument("--format", choices=["onnx", "torch"], default="onnx", help="(default: onnx)")
    parser.add_argument("--out", help="the file (default: model.onnx or model.pt2 in the run folder, else NAME.onnx)")
    json_flag(parser)


def _serve(parser: Parser) -> None:
    _trained(parser, nargs="?", default="capsnet-multimnist-small")
    parser.add_argument("--port", type=flags.port, default=8642, help="0 takes any free one (default: 8642)")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    device_flag(parser)


def _reproduce(parser: Parser) -> None:
    parser.add_argument(
        "name", nargs="?", choices=[*EXPERIMENTS, "all"], metavar="NAME",
        help="an experiment from --list, or all of them; with all, one that fails does not stop the others",
    )  # fmt: skip
    parser.add_argument(
        "--list", action="store_const", dest="does", const="lists.experiments", help="only list the experiments"
    )
    parser.add_argument(
        "--preset",
        choices=["quick", "paper", "smoke"],
        default="quick",
        help="quick: minutes on two cores; paper: the published protocol; smoke: seconds, to see that it runs "
        "(default: quick)",
    )
    parser.add_argument(
        "--trials", type=more_than_zero(int), help="seeds of each training (default: what the experiment has)"
    )
    parser.add_argument(
        "--jobs", type=more_than_zero(int), default=1,
        help="trainings at a time, which share out the cores (default: 1)",
    )  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="only list the trainings")
    json_flag(parser)


def _complete(parser: Parser) -> None:
    """Answer a shell that asks what could come next, if argcomplete is installed."""
    if "_ARGCOMPLETE" in os.environ:
        try:
            import argcomplete
        except ImportError:
            return
        argcomplete.autocomplete(parser)


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    _complete(parser)
    args = parser.parse_args(arguments)
    module, _, function = args.does.partition(".")
    try:
        if module != "lists":
            from torchcaps.kernels.workspace import keep_freed_memory

            keep_freed_memory()
        # Names of files are bytes, in whatever encoding: they pass through as they came.
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="surrogateescape")
        getattr(import_module(f"torchcaps.app.{module}"), function)(args)
    except UserError as error:
        print(f"torchcaps: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("torchcaps: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()


if __name__ == "__main__":
    main()
