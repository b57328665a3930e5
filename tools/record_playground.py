"""The picture and the animation of the playground in the documentation, taken from the page itself.

    python tools/record_playground.py [RUN-or-MODEL]

Writes docs/playground.png and docs/playground.gif (two digits dragged apart and back). Needs Chromium.
"""

import argparse
import io
import json
import math
import shutil
import sys
from pathlib import Path
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from serving import Process, serving  # noqa: E402

DOCS = ROOT / "docs"
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
FRAMES = 40
FRAME_MS = 80
GIF_WIDTH = 720
COLOURS = 192


def layers(place: Process, first: tuple[int, int, float, float], second: tuple[int, int, float, float]) -> str:
    """An address with two digits: class, which of its samples, x and y."""
    with urlopen(f"http://127.0.0.1:{place.port}/api/samples?token={place.token}") as answer:
        labels = json.load(answer)["labels"]
    parts = []
    for label, which, x, y in (first, second):
        sample = [at for at, value in enumerate(labels) if value == label][which]
        parts.append(f"{sample}~{x}~{y}~0~1~0")
    return f"http://127.0.0.1:{place.port}/?token={place.token}#layers={'_'.join(parts)}"


def opened(page: Page, url: str) -> Page:
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector("#tree .edge", state="attached")
    page.wait_for_timeout(500)
    return page


def settle(page: Page) -> None:
    """Until the last answer has been drawn, the bars' short transition included."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(120)


def still(page: Page, path: Path) -> None:
    with Image.open(io.BytesIO(page.screenshot(full_page=True))) as picture:
        picture.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE).save(path, optimize=True)


def animation(page: Page, path: Path) -> None:
    """The second digit is dragged out to the right and back, as a hand would."""
    frame = page.locator("#handles .frame").last.bounding_box()
    stage, see = page.locator("#compose").bounding_box(), page.locator("#see").bounding_box()
    assert frame
    assert stage
    assert see
    clip = {"x": stage["x"] - 8, "y": stage["y"] - 8, "width": see["x"] + see["width"] - stage["x"] + 16}
    clip["height"] = max(stage["height"], see["height"]) + 16
    pixel = page.locator("#canvas").bounding_box()["width"] / 36  # pyright: ignore[reportOptionalSubscript]
    x, y = frame["x"] + frame["width"] * 0.5, frame["y"] + frame["height"] * 0.6
    pictures = []
    page.mouse.move(x, y)
    page.mouse.down()
    for number in range(FRAMES):
        away = (1 - math.cos(2 * math.pi * number / FRAMES)) / 2
        page.mouse.move(x + 9 * pixel * away, y + 1 * pixel * away)
        settle(page)
        with Image.open(io.BytesIO(page.screenshot(clip=clip))) as shot:  # pyright: ignore[reportArgumentType]
            size = GIF_WIDTH, round(GIF_WIDTH * shot.height / shot.width)
            pictures.append(shot.convert("RGB").resize(size, Image.Resampling.LANCZOS))
    page.mouse.up()
    palette = pictures[FRAMES // 2].quantize(COLOURS, Image.Quantize.FASTOCTREE)
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="capsnet-multimnist-fine")
    args = parser.parse_args()
    DOCS.mkdir(exist_ok=True)
    with serving(args.run) as process, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        wide = browser.new_page(viewport={"width": 1760, "height": 1000})
        still(opened(wide, layers(process, (2, 1, -4, -1), (7, 4, 4, 1))), DOCS / "playground.png")
        wide.close()
        desk = browser.new_page(viewport={"width": 1180, "height": 1100})
        opened(desk, layers(process, (3, 5, -4, 0), (6, 3, -2, 0)))
        desk.locator(".thumb").nth(1).click()
        desk.evaluate("() => scrollTo(0, 0)")
        animation(desk, DOCS / "playground.gif")
        browser.close()
    for name in ("playground.png", "playground.gif"):
        print(f"docs/{name}: {(DOCS / name).stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
