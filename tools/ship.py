"""Put the weights of a finished run into the package, in half precision, with what they score like that.

python tools/ship.py runs/multimnist-shipped --data multimnist multimnist-iou80
"""

import argparse
import json
from pathlib import Path

import torch

from torchcaps.analysis.evaluate import evaluate
from torchcaps.core.files import read_json, write_json, write_tensors
from torchcaps.data import load_test_set
from torchcaps.models.pretrained import FOLDER
from torchcaps.models.registry import count_parameters
from torchcaps.training.runs import load_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", nargs="+", required=True, help="test sets to score the shipped weights on")
    arguments = parser.parse_args()
    model, config = load_run(arguments.run)
    half = {k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict({k: v.float() if v.dtype == torch.float16 else v for k, v in half.items()})
    name = config["train"]["model"]
    manifest, result = read_json(arguments.run / "manifest.json"), read_json(arguments.run / "result.json")
    card = {
        "sha256": write_tensors(FOLDER / f"{name}.safetensors", half),
        "parameters": count_parameters(model),
        "scores": {data: evaluate(model, load_test_set(data)) for data in arguments.data},
        "recipe": config["train"],
        "seconds": result["seconds"],
        "images_seen": result["images_seen"],
        "command": manifest["command"],
        "continued": manifest.get("continued", []),
        "versions": manifest["versions"],
        "machine": manifest["machine"],
    }
    write_json(FOLDER / f"{name}.json", card)
    print(json.dumps(card["scores"], indent=2))


if __name__ == "__main__":
    main()
