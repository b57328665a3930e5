"""Write the measured part of docs/how-to-choose-a-routing.md from results/routings/.

python tools/routing_guide.py            # --check only says whether it is up to date
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.experiments.routing_guide import load, render  # noqa: E402

PAGE = ROOT / "docs" / "how-to-choose-a-routing.md"


def main() -> None:
    text = PAGE.read_text()
    fresh = render(text, load(ROOT / "results"))
    if "--check" in sys.argv:
        sys.exit(0 if fresh == text else f"{PAGE.name} is not what results/ says: run python tools/routing_guide.py")
    PAGE.write_text(fresh)


if __name__ == "__main__":
    main()
