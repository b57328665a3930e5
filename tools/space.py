"""Make a Hugging Face Space of a static site: the page of `torchcaps publish`, with the header that a Space needs.

torchcaps publish --out space && python tools/space.py space
hf upload OWNER/torchcaps-playground space . --repo-type space
"""

import sys
from pathlib import Path

README = """---
title: torchcaps playground
emoji: 💊
colorFrom: indigo
colorTo: yellow
sdk: static
app_file: index.html
license: mit
tags: [capsule-networks, dynamic-routing]
---

Drag two digits over each other and see which capsules answer. The networks run in your browser: nothing is sent
anywhere. Made with `torchcaps publish`.
"""


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) == 2 else "")
    if len(sys.argv) != 2 or not (folder / "index.html").is_file():
        sys.exit("give the folder that 'torchcaps publish --out FOLDER' wrote: it has an index.html")
    (folder / "README.md").write_text(README, encoding="utf-8")


if __name__ == "__main__":
    main()
