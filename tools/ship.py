"""Put the weights of a finished run into the package, in half precision, with what they score like that.

python tools/ship.py runs/multimnist-shipped --data multimnist multimnist-iou80
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from torchcaps.analysis.corruptions import robustness
from torchcaps.analysis.evaluate import evaluate
from torchcaps.core.files import read_json, write_json, write_tensors
from torchcaps.data import load_test_set
from torchcaps.models.pretrained import FOLDER
from torchcaps.models.registry import count_parameters
from torchcaps.training.runs import load_run

ZOO = Path(__file__).parent.parent / "results" / "zoo.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", nargs="+", required=True, help="test sets to score the shipped weights on")
    parser.add_argument("--model", help="the model's name, where the run was begun from Python with a network")
    parser.add_argument(
        "--began-with", type=Path, nargs="*", default=[], help="cards and runs whose weights it goes on from, in order"
    )
    arguments = parser.parse_args()
    model, config = load_run(arguments.run)
    half = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() if v.dtype == torch.float16 else v for k, v in half.items()})
    name = arguments.model or config["train"]["model"]
    manifest, result = read_json(arguments.run / "manifest.json"), read_json(arguments.run / "result.json")
    card = {
        "sha256": write_tensors(FOLDER / f"{name}.safetensors", half),
        "parameters": count_parameters(model),
        "scores": {data: evaluate(model, load_test_set(data)) for data in arguments.data},
        "corruptions": robustness(model, load_test_set(arguments.data[0])),
        "recipe": config["train"],
        "seconds": result["seconds"],
        "images_seen": result["images_seen"],
        "command": manifest["command"],
        "continued": manifest.get("continued", []),
        "began_with": [origin for path in arguments.began_with for origin in _origins(path)],
        "versions": manifest["versions"],
        "machine": manifest["machine"],
    }
    write_json(FOLDER / f"{name}.json", card)
    print(json.dumps(card["scores"], indent=2))
    ZOO.write_text(zoo())


def zoo() -> str:
    """A line for each of the weights inside the package, from their cards.

    Seconds and images are those of the whole training, with the weights that it began with.
    """
    lines = ["model,data,accuracy,parameters,megabytes,seed,seconds,images_seen"]
    for path in sorted(FOLDER.glob("*.json")):
        card = read_json(path)
        data, score = next(iter(card["scores"].items()))
        parts = [card, *card.get("began_with", [])]
        seconds, images = (sum(part[name] for part in parts) for name in ("seconds", "images_seen"))
        size = path.with_suffix(".safetensors").stat().st_size / 1e6
        line = (path.stem, data, f"{score['accuracy']:.4f}", card["parameters"], f"{size:.2f}")
        lines.append(",".join(map(str, (*line, card["recipe"]["seed"], round(seconds, 1), images))))
    return "\n".join(lines) + "\n"


def _origins(path: Path) -> list[dict[str, Any]]:
    """What a card says about the weights that a training began with, given their card or run; the first ones first."""
    if path.is_dir():
        result = read_json(path / "result.json")
        seen = {name: result[name] for name in ("accuracy", "seconds", "images_seen")}
        return [{"recipe": read_json(path / "config.json")["train"], **seen}]
    card = read_json(path)
    own = {name: card[name] for name in ("sha256", "recipe", "seconds", "images_seen", "command", "continued")}
    return [*card.get("began_with", []), own]


if __name__ == "__main__":
    main()
