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
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import NoReturn

from torchcaps import __version__
from torchcaps.app import flags, listings
from torchcaps.app.flags import AMOUNT, COUNT, Add, adder, device_flag, json_flag
from torchcaps.core.errors import UserError, on_command_line
from torchcaps.core.text import printable
from torchcaps.experiments import EXPERIMENTS

EPILOG = """\
A first look:      torchcaps demo
A first training:  torchcaps train capsnet-mnist-small --max-seconds 180

environment variables:
  TORCHCAPS_DATA      where data sets are kept (default: the user's cache folder, such as ~/.cache/torchcaps)
  TORCHCAPS_KERNELS   plain, fast or auto: PyTorch's own operators, our kernels wherever they can, or whichever of
                      both is faster here (default: auto)
  TORCHCAPS_TIMEOUT   seconds that a process of a training on several waits for the others (default: 600)
  OMP_NUM_THREADS     threads of the processor that one process computes with (default: all cores)
  XDG_CACHE_HOME      where caches are, among them compiled kernels (default: ~/.cache)
  CC                  the compiler of kernels in C (default: cc)

Completion of names and flags by the shell: pip install 'torchcaps[completion]', then, in bash or zsh,
  eval "$(register-python-argcomplete torchcaps)"
"""

data_names = partial(listings.names, "data")


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
    for name, (does, about, add_flags) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=(add_flags and add_flags.__doc__) or about)
        command.set_defaults(does=does)
        if add_flags is not None:
            add_flags(command)
        if name not in OWN_JSON:
            json_flag(adder(command))
    return parser


def _data(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="the data sets by name")
    listing.set_defaults(does="lists.data")
    json_flag(adder(listing))
    fetch = actions.add_parser("fetch", help="bring a data set here and verify it")
    fetch.set_defaults(does="commands.data_fetch")
    adder(fetch)("name", "such as mnist; see 'torchcaps data list'", data_names)
    json_flag(adder(fetch))


def _trained(parser: Parser, **options: object) -> Add:
    """Which trained network a command asks."""
    add = adder(parser)
    add("run", "a run folder, or a model that comes with weights", _with_weights, **options)
    return add


def _with_weights() -> list[str]:
    return [row["name"] for row in listings.rows("models") if row["pretrained"]]


def _images_flag(add: Add) -> None:
    about = "where the images of your own are that the run was trained on, if it was made elsewhere or they were moved"
    add("--data", about, metavar="FOLDER")


def _evaluate(parser: Parser) -> None:
    add = _trained(parser)
    add("--data", "another data set by name, or another folder of images of the same classes", data_names)
    pairs = listings.kept()["training"]["test_pairs"]
    add("--pairs", f"MultiMNIST: how many test pairs (default: {pairs})", type=COUNT["type"], default=pairs)
    spoilt = "also score spoilt images: specks, noise, a grey ground, other strokes, turned, cut off"
    add("--corruptions", f"{spoilt}; a run keeps the table for its report", action="store_true")
    strange = "also measure how well images of something else are told from its own: a data set by name, or a folder"
    add("--novel", strange, data_names, metavar="NAME|DIR")
    add("--beside", "with --corruptions: another run or model to compare", _with_weights, metavar="RUN")
    device_flag(add)


def _predict(parser: Parser) -> None:
    """Classify images of any size and mode: PNG, JPEG, WebP, TIFF, GIF or BMP. What cannot be read is named on standard
    error and passed over. A label is the longest capsule's; below a length of 0.5 it is none of these.
    """
    add = _trained(parser)
    add("images", "files, folders, or - for a path in each line of standard input", nargs="+", metavar="IMAGE")
    add("--format", "(default: table)", choices=["table", "json", "csv"], default="table")
    device_flag(add)


def _explain(parser: Parser) -> None:
    """Write a page that shows what the network sees, where its answer comes from and what it resembles."""
    add = _trained(parser)
    add("images", "image files", nargs="+", metavar="IMAGE")
    add("--out", "one page for all images (default: NAME-explained.html for each, here)")
    _images_flag(add)
    device_flag(add)


def _export(parser: Parser) -> None:
    """Write a model as ONNX or as a torch.export program; its answers are compared with the model's first."""
    add = _trained(parser)
    add("--format", "(default: onnx)", choices=["onnx", "torch"], default="onnx")
    add("--out", "the file (default: model.onnx or model.pt2 in the run folder, else NAME.onnx)")


def _publish(parser: Parser) -> None:
    """Write the playground as a folder that any web host serves: the networks run in the visitor's browser. Without
    names, all models of the package. Test images of a run become part of the page.
    """
    add = _trained(parser, nargs="*")
    add("--out", "the folder, new or empty (default: site)", default="site", metavar="DIR")
    runtime = "the unpacked npm package onnxruntime-web, or its dist folder (default: fetched by npm, once)"
    add("--runtime", runtime, metavar="DIR")
    add("--no-samples", "leave the sample pictures out; visitors draw or upload their own", action="store_true")


def _figures(parser: Parser) -> None:
    add = adder(parser)
    add("run", "a run folder")
    _images_flag(add)


def _serve(parser: Parser) -> None:
    add = _trained(parser, nargs="?", default="capsnet-multimnist-fine")
    add("--port", "0 takes any free one (default: 8642)", type=flags.PORT, default=8642)
    _images_flag(add)
    add("--no-open", "do not open a browser", action="store_true")
    add("--no-token", "answer without the token in the address: other users of this machine too", action="store_true")
    device_flag(add)
    add("--json", "print where it is, its port and token as one line of JSON", action="store_true")


def _bench(parser: Parser) -> None:
    add = adder(parser)
    add("names", "which benchmarks (default: all)", nargs="*")
    add("--repeats", "interleaved repeats (default: 10)", type=COUNT["type"], default=10)
    add("--kernels", "measure the kernels instead: every shape, every way", action="store_true")


def _reproduce(parser: Parser) -> None:
    """Run an experiment. What is finished is not repeated, so it can be stopped and started at any time."""
    add = adder(parser)
    names = "an experiment from --list, or all of them; with all, one that fails does not stop the others"
    add("name", names, nargs="?", choices=[*EXPERIMENTS, "all"], metavar="NAME")
    add("--list", "only list the experiments", action="store_const", dest="does", const="lists.experiments")
    presets = (
        "quick: minutes, to try it; standard: hours of two cores, five seeds, verdicts that count; "
        "paper: the published protocol, where there is one; smoke: seconds, to see that it runs"
    )
    add("--preset", f"{presets} (default: quick)", choices=["quick", "standard", "paper", "smoke"], default="quick")
    add("--trials", "seeds of each training (default: what the experiment has)", type=COUNT["type"])
    add("--jobs", "trainings at a time, which share out the cores (default: 1)", type=COUNT["type"], default=1)
    add("--plan", "only list the trainings and what they cost", action="store_true")
    stale = "only list the results that are older than the code that they describe"
    add("--stale", stale, action="store_const", dest="does", const="commands.stale")
    add("--as-is", "judge what is finished, also if the code has changed since; train nothing", action="store_true")


def _demo(parser: Parser) -> None:
    add = adder(parser)
    add("--out", "the run folder (default: runs/demo)", default="runs/demo")
    add("--max-seconds", "how long to train (default: 240)", **AMOUNT, default=240)


DEMO = "four minutes from nothing to a network that takes overlapping digits apart"
COMMANDS: dict[str, tuple[str, str, Callable[[Parser], None] | None]] = {
    "models": ("lists.models", "list the models and their sizes", None),
    "routings": ("lists.routings", "list the routings, their options and papers", None),
    "data": ("", "list data sets, or fetch one", _data),
    "train": ("commands.train", "train a model into a run folder", flags.train_flags),
    "evaluate": ("asking.evaluate", "score a run on its test set", _evaluate),
    "predict": ("asking.predict", "classify images", _predict),
    "explain": ("asking.explain", "show why a capsule network answers as it does", _explain),
    "export": ("asking.export", "write a model as one file that runs without torchcaps", _export),
    "figures": ("commands.figures", "draw the figures and the report of a run", _figures),
    "serve": ("asking.serve", "open the playground in the browser", _serve),
    "publish": ("asking.publish", "write the playground as a static web site", _publish),
    "bench": ("commands.bench", "measure plain PyTorch against torchcaps, in one run", _bench),
    "doctor": ("commands.doctor", "what this machine has, which kernels run on it, and why", None),
    "reproduce": ("commands.reproduce", "run an experiment of the papers, from data to verdict", _reproduce),
    "demo": ("commands.demo", DEMO, _demo),
}
"""By name: the function that it calls, a line of help, and what adds its flags; that one's docstring describes it."""
OWN_JSON = ("data", "train", "serve")
"""The others have the usual `--json` after their flags."""


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
    before = on_command_line.set(True)
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
    except OSError as error:  # a disk that is full, failing or not ours, wherever it was noticed
        where = f"{error.filename}: " if error.filename else ""
        print(f"torchcaps: {printable(f'{where}{error.strerror or error}')}", file=sys.stderr)
        sys.exit(2)
    finally:
        on_command_line.reset(before)


if __name__ == "__main__":
    main()
