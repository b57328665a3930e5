"""Cards of the models whose weights are in the package: pages of the site, and folders for the Hugging Face hub.

python tools/cards.py FOLDER [--owner NAME]       # a folder for each model, ready for `hf upload`
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from readme_rows import finished, spread  # noqa: E402

from torchcaps import create_model  # noqa: E402
from torchcaps.experiments.statistics import FEWEST_SEEDS  # noqa: E402
from torchcaps.models.hub import card_facts  # noqa: E402
from torchcaps.models.pretrained import PRETRAINED  # noqa: E402
from torchcaps.models.registry import find  # noqa: E402

LOAD = 'import torchcaps\n\nmodel = torchcaps.create_model("{name}", pretrained=True).eval()'
# Networks that were trained beside it, with equal budgets: a card's own weights were trained for longer.
CONTROLS = {
    "capsnet-multimnist-fine": {
        "capsules": "trained for 395 s of two cores, both digits right, IoU >= 0.8",
        "cnn": "control: a CNN of the same backbone in the same time",
    }
}


def facts(name: str) -> dict[str, Any]:
    """What the card of the weights says, and the control where results/ has one."""
    found = card_facts(name)
    for network, title in CONTROLS.get(name, {}).items():
        rows = list(finished("overlap-controls", network).values())
        if len(rows) >= FEWEST_SEEDS:
            found[title] = f"{spread([row['accuracy'] for row in rows])} ({len(rows)} trainings)"
    return found


def pages() -> dict[str, str]:
    """The Markdown of each card, without the header that only the hub reads."""
    made = {}
    for name in PRETRAINED:
        model = create_model(name, pretrained=True)
        text = model.model_card(name, facts(name)).split("---\n", 2)[2].lstrip()
        # The card's own example loads from the hub.
        made[name] = re.sub(r"^from .*?^model = [^\n]*", LOAD.format(name=name), text, flags=re.DOTALL | re.MULTILINE)
    return made


def overview() -> str:
    """The page that lists them."""
    return "\n".join(["# Models with weights in the package", "", *_lines(), ""])


def _lines() -> Iterator[str]:
    yield "`torchcaps.create_model(NAME, pretrained=True)` loads one; `torchcaps models` lists all networks."
    yield ""
    yield "| model | | parameters | score |"
    yield "|---|---|---|---|"
    for name, card in PRETRAINED.items():
        data, score = next(iter(card["scores"].items()))
        yield (
            f"| [`{name}`](models/{name}.md) | {find(name).about} | {card['parameters']:,} | "
            f"{score['accuracy']:.2%} on {data} ({score['metric']}) |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--owner", default="torchcaps", help="whose repositories they will be on the hub")
    arguments = parser.parse_args()
    for name in PRETRAINED:
        model = create_model(name, pretrained=True)
        model.save_pretrained(
            arguments.folder / name, repo_id=f"{arguments.owner}/{name}", model_card_kwargs=facts(name)
        )
        print(arguments.folder / name)


if __name__ == "__main__":
    main()
