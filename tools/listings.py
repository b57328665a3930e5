"""Write torchcaps/app/listings.json from the tables of models, routings and data sets.

python tools/listings.py            # --check only says whether it is up to date
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.app.listings import FILE, made  # noqa: E402


def main() -> None:
    fresh = json.dumps(made(), indent=1) + "\n"
    if "--check" in sys.argv:
        current = FILE.read_text() if FILE.exists() else ""
        sys.exit(0 if fresh == current else f"{FILE.name} is not what the tables say: run python tools/listings.py")
    FILE.write_text(fresh)


if __name__ == "__main__":
    main()
