"""The command line: `torchcaps` and `python -m torchcaps`.

This module only parses; `commands.py` does the work and is imported afterwards, so that `--help` does not wait for
torch. Errors are one line on standard error and exit code 2; with --json only the JSON goes to standard output.
"""

import argparse
import sys
from typing import NoReturn

from torchcaps import __version__
from torchcaps.errors import UserError


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
    train.add_argument("--data", help="a data set by name (default: the one the model is meant for)")
    train.add_argument("--epochs", type=float, help="stop after so many passes over the training set")
    train.add_argument("--max-seconds", type=float, help="stop after so many seconds; the schedule fits itself to them")
    train.add_argument("--out", help="the run folder (default: runs/MODEL-seedN)")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out")
    train.add_argument("--seed", type=int, help="decides initial weights, order and augmentation (default: 0)")
    train.add_argument("--batch", type=int, help="images in a step, over all processes (default: 128)")
    train.add_argument("--lr", type=float, help="learning rate")
    train.add_argument("--optimiser", choices=["adam", "muon"])
    train.add_argument("--schedule", choices=["decay", "cosine", "linear", "constant"], help="of the learning rate")
    train.add_argument("--average", type=float, help="decay of an exponential average of the weights, such as 0.999")
    train.add_argument("--validation", type=int, help="training images held out to watch progress (default: 2000)")
    train.add_argument("--pairs", type=int, help="MultiMNIST: a fixed pool of so many pairs (default: never repeat)")
    train.add_argument("--iterations", type=int, help="routing iterations (default: 3)")
    train.add_argument("--gradient", choices=["full", "last"], help="through all routing iterations, or the last only")
    train.add_argument(
        "--recipe", choices=["paper", "official"], help="the paper's text, or the authors' released code"
    )
    train.add_argument("--no-reconstruction", action="store_true", help="train without the decoder")
    train.add_argument("--checkpoint-seconds", type=float, help="how often to save (default: 30)")
    train.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    train.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files into the run folder")
    json_flag(train)

    evaluate = command("evaluate", "score a run on its test set")
    evaluate.add_argument("run", help="a run folder, or a model that comes with weights")
    evaluate.add_argument("--data", help="another data set by name")
    evaluate.add_argument("--pairs", type=int, default=10_000, help="MultiMNIST: how many test pairs (default: 10000)")
    json_flag(evaluate)

    predict = command("predict", "classify images", "Classify images: PNG or JPEG of any size and mode.")
    predict.add_argument("run", help="a run folder, or a model that comes with weights")
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    json_flag(predict)

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
    json_flag(bench)

    demo = command("demo", "four minutes from nothing to a network that takes overlapping digits apart")
    demo.add_argument("--out", default="runs/demo", help="the run folder (default: runs/demo)")
    demo.add_argument("--max-seconds", type=float, default=240, help="how long to train (default: 240)")
    return parser


def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    try:
        from torchcaps import commands

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
