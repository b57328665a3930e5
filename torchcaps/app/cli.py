"""The command line: `torchcaps` and `python -m torchcaps`.

This module only parses; `commands.py` does the work and is imported afterwards, so that `--help` does not wait for
torch. Errors are one line on standard error and exit code 2; with --json only the JSON goes to standard output.
"""

import argparse
import io
import sys
from typing import NoReturn

from torchcaps import __version__
from torchcaps.core.errors import UserError
from torchcaps.experiments import EXPERIMENTS


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"torchcaps: {message} (see '{self.prog} --help')\n")


def _parser() -> Parser:
    parser = Parser(
        prog="torchcaps",
        description="Capsule networks for PyTorch: train, look inside, reproduce the papers.",
        epilog="A first look: torchcaps demo.  A first training: torchcaps train capsnet-mnist-small --max-seconds 180",
    )
    parser.add_argument("--version", action="version", version=f"torchcaps {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    def command(name: str, about: str, detail: str = "") -> Parser:
        return commands.add_parser(name, help=about, description=detail or about)

    def json_flag(target: argparse.ArgumentParser) -> None:
        target.add_argument("--json", action="store_true", help="print JSON, and nothing else, to standard output")

    models = command("models", "list the models and their sizes")
    json_flag(models)

    data = command("data", "list data sets, or fetch one")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    json_flag(actions.add_parser("list", help="the data sets by name"))
    fetch = actions.add_parser("fetch", help="bring a data set here and verify it")
    fetch.add_argument("name", help="such as mnist; see 'torchcaps data list'")
    json_flag(fetch)

    train = command(
        "train",
        "train a model into a run folder",
        "Train a model. Ctrl-C or a crash loses at most half a minute: the same command with --resume goes on.",
    )
    train.add_argument("model", nargs="?", help="a name from 'torchcaps models' (not needed with --resume)")
    train.add_argument(
        "--data",
        help="a data set by name (default: the one the model is meant for); or your own images: a folder with one "
        "sub-folder per class, perhaps below train/, val/ and test/, or a .csv of path, label and perhaps split",
    )
    train.add_argument("--epochs", type=float, help="stop after so many passes over the training set")
    train.add_argument("--steps", type=int, help="stop after so many batches: the same on a busy machine")
    train.add_argument("--max-seconds", type=float, help="stop after so many seconds; the schedule fits itself to them")
    train.add_argument("--out", help="the run folder (default: runs/MODEL-seedN)")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out; a larger budget prolongs it")
    train.add_argument("--seed", type=int, help="decides initial weights, order and augmentation (default: 0)")
    train.add_argument("--batch", type=int, help="images in a step, over all processes (default: 128)")
    train.add_argument("--lr", type=float, help="learning rate")
    train.add_argument("--optimiser", choices=["adam", "muon"])
    train.add_argument("--schedule", choices=["decay", "cosine", "linear", "constant"], help="of the learning rate")
    train.add_argument(
        "--warmup", type=float, metavar="SHARE", help="part of the budget in which the rate rises from 0"
    )
    train.add_argument("--average", type=float, help="decay of an exponential average of the weights, such as 0.999")
    train.add_argument("--validation", type=int, help="training images held out to watch progress (default: 2000)")
    train.add_argument("--pairs", type=int, help="MultiMNIST: a fixed pool of so many pairs (default: never repeat)")
    train.add_argument("--routing", metavar="NAME", help="such as dynamic, em, self-attention, heinsen, uniform")
    train.add_argument("--iterations", type=int, help="routing iterations (default: what suits the routing)")
    train.add_argument("--gradient", choices=["full", "last"], help="through all routing iterations, or the last only")
    train.add_argument(
        "--recipe", choices=["paper", "official"], help="the paper's text, or the authors' released code"
    )
    train.add_argument("--no-reconstruction", action="store_true", help="train without the decoder")
    _own_images_flags(train)
    train.add_argument("--checkpoint-seconds", type=float, help="how often to save (default: 30)")
    train.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    train.add_argument("--quiet", action="store_true", help="no progress on standard error, only errors")
    train.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files into the run folder")
    json_flag(train)

    evaluate = command("evaluate", "score a run on its test set")
    evaluate.add_argument("run", help="a run folder, or a model that comes with weights")
    evaluate.add_argument("--data", help="another data set by name, or another folder of images of the same classes")
    evaluate.add_argument("--pairs", type=int, default=10_000, help="MultiMNIST: how many test pairs (default: 10000)")
    json_flag(evaluate)

    predict = command(
        "predict",
        "classify images",
        "Classify images of any size and mode: PNG, JPEG, WebP, TIFF, GIF or BMP. What cannot be read is named on "
        "standard error and passed over. A label is the longest capsule's; below a length of 0.5 it is none of these.",
    )
    predict.add_argument("run", help="a run folder, or a model that comes with weights")
    predict.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files, folders, or - for a path in each line of standard input"
    )
    predict.add_argument("--format", choices=["table", "json", "csv"], default="table", help="(default: table)")
    json_flag(predict)

    explain = command(
        "explain",
        "show why a capsule network answers as it does",
        "Write a page that shows what the network sees, where its answer comes from and what it resembles.",
    )
    explain.add_argument("run", help="a run folder, or a model that comes with weights")
    explain.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    explain.add_argument("--out", help="one page for all images (default: NAME-explained.html for each, here)")
    json_flag(explain)

    export = command(
        "export",
        "write a model as one file that runs without torchcaps",
        "Write a model as ONNX or as a torch.export program; its answers are compared with the model's first.",
    )
    export.add_argument("run", help="a run folder, or a model that comes with weights")
    export.add_argument("--format", choices=["onnx", "torch"], default="onnx", help="(default: onnx)")
    export.add_argument("--out", help="the file (default: model.onnx or model.pt2 in the run folder, else NAME.onnx)")
    json_flag(export)

    figures = command("figures", "draw the figures and the report of a run")
    figures.add_argument("run", help="a run folder")
    json_flag(figures)

    serve = command("serve", "open the playground in the browser")
    serve.add_argument(
        "run", nargs="?", default="capsnet-multimnist-small", help="a run folder or a model with weights"
    )
    serve.add_argument("--port", type=int, default=8642, help="0 takes any free one (default: 8642)")
    serve.add_argument("--no-open", action="store_true", help="do not open a browser")

    bench = command("bench", "measure plain PyTorch against torchcaps, in one run")
    bench.add_argument("names", nargs="*", help="which benchmarks (default: all)")
    bench.add_argument("--repeats", type=int, default=10, help="interleaved repeats (default: 10)")
    bench.add_argument("--kernels", action="store_true", help="measure the kernels instead: every shape, every way")
    json_flag(bench)
    json_flag(command("doctor", "what this machine has, which kernels run on it, and why"))

    reproduce = command(
        "reproduce",
        "run an experiment of the papers, from data to verdict",
        "Run an experiment. What is finished is not repeated, so it can be stopped and started at any time.",
    )
    about = "; ".join(f"{name}: {entry.about}" for name, entry in EXPERIMENTS.items())
    reproduce.add_argument("name", choices=[*EXPERIMENTS, "all"], metavar="NAME", help=f"all, or one of: {about}")
    reproduce.add_argument(
        "--preset",
        choices=["quick", "paper", "smoke"],
        default="quick",
        help="quick: minutes on two cores; paper: the published protocol; smoke: seconds, to see that it runs",
    )
    reproduce.add_argument("--trials", type=int, help="seeds of each training (default: what the preset has)")
    reproduce.add_argument(
        "--jobs", type=int, default=1, help="trainings at a time, which share out the cores (default: 1)"
    )
    reproduce.add_argument("--plan", action="store_true", help="only list the trainings")
    json_flag(reproduce)

    demo = command("demo", "four minutes from nothing to a network that takes overlapping digits apart")
    demo.add_argument("--out", default="runs/demo", help="the run folder (default: runs/demo)")
    demo.add_argument("--max-seconds", type=float, default=240, help="how long to train (default: 240)")
    json_flag(demo)
    return parser


def _own_images_flags(train: Parser) -> None:
    train.add_argument(
        "--size",
        metavar="N|HxW",
        help="your own images are scaled to so many pixels (default: what suits them, up to 64)",
    )
    train.add_argument(
        "--balance",
        choices=["auto", "none", "classes"],
        help="show rare classes more often (default, auto: if one has over ten times the images of another)",
    )
    train.add_argument(
        "--augment",
        metavar="PRESET",
        help="none, shift, digits or natural (default: what the data is meant for); single amounts change a preset:",
    )
    train.add_argument("--shift", type=int, metavar="PIXELS", help="move by up to so many pixels")
    train.add_argument("--rotate", type=float, dest="rotation", metavar="DEGREES", help="turn by up to so much")
    for name, about in (
        ("scale", "stretch each side by up to this share, such as 0.1"),
        ("shear", "slant by up to this share"),
        ("crop", "show a window with sides smaller by up to this share"),
        ("colour", "vary brightness, contrast and saturation by up to this share"),
        ("cutout", "hide a square with sides of this share"),
    ):
        train.add_argument(f"--{name}", type=float, metavar="SHARE", help=about)
    train.add_argument("--flip", action=argparse.BooleanOptionalAction, help="mirror half of the images, or none")


def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    try:
        from torchcaps.app import commands
        from torchcaps.kernels.workspace import keep_freed_memory

        keep_freed_memory()
        # Names of files are bytes, in whatever encoding: they pass through as they came.
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="surrogateescape")
        name = f"{args.command}_{args.action}" if args.command == "data" else args.command
        getattr(commands, name)(args)
    except UserError as error:
        print(f"torchcaps: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("torchcaps: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()


if __name__ == "__main__":
    main()
