"""Write docs/RESULTS.md from the files in results/.

python tools/results_page.py            # --check only says whether it is up to date
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.experiments.page import render  # noqa: E402


def main() -> None:
    page, fresh = ROOT / "docs" / "RESULTS.md", render(ROOT / "results")
    if "--check" in sys.argv:
        current = page.read_text() if page.exists() else ""
        sys.exit(0 if fresh == current else "docs/RESULTS.md is not what results/ says: run tools/results_page.py")
    page.write_text(fresh)


if __name__ == "__main__":
    main()
