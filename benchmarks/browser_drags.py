"""How fast the published page answers: 200 steps of a drag in Chromium, and what a first and a second visit cost.

    python benchmarks/browser_drags.py [--model capsnet-multimnist-fine] [--drags 200] [--site DIR]

Publishes the model (or takes a site that is there already), opens it from `python -m http.server` in Chromium and drags
a digit over the other, a step at a time. A step takes from the browser's own time of the pointer event until the answer
to it is in the page (`answer`) and until the frame that shows it is drawn (`painted`). The next step follows a sixtieth
of a second after that, while the other panels still work on the last one. Writes results/publish/drags.json.
On a machine that is busy with other things, `chrt -r 1 python benchmarks/browser_drags.py` measures the page alone.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, sync_playwright

from torchcaps.core.machine import processor

RESULTS = Path(__file__).parents[1] / "results" / "publish"
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
WARM_UP = 20
FRAME_MS = 1000 / 60
WATCH = """() => {
  window.steps = [];
  let asked = null;
  document.getElementById("handles").addEventListener("pointermove", (event) => (asked = event.timeStamp), true);
  new MutationObserver(() => {
    if (asked === null) return;
    const [began, answered] = [asked, performance.now()];
    asked = null;
    requestAnimationFrame(() => setTimeout(() => window.steps.push([answered - began, performance.now() - began]), 0));
  }).observe(document.getElementById("bars-legend"), { childList: true });
}"""


@contextmanager
def hosted(folder: Path, log: Path) -> Iterator[str]:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as host:
        try:
            assert host.stdout is not None
            found = re.search(r"http://[\d.:]+", host.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            host.terminate()


def visited(context: BrowserContext, address: str) -> tuple[Page, float]:
    """The page, and the seconds until its first answer."""
    page = context.new_page()
    began = time.monotonic()
    page.goto(address)
    page.wait_for_function("() => document.getElementById('verdict').textContent", timeout=120_000)
    return page, round(time.monotonic() - began, 2)


def visits(context: BrowserContext, site: Path, folder: Path) -> tuple[Page, dict[str, Any]]:
    """A first visit, and a second one when the host is gone."""
    log = folder / "requests.log"
    with hosted(site, log) as address:
        page, first = visited(context, address)
        page.wait_for_selector("#tree .edge", state="attached")
        page.wait_for_timeout(500)
        page.close()
        asked = re.findall(r'"GET (\S+) HTTP/1.1" 200', log.read_text())
    files = [(site / (path.lstrip("/") or "index.html")).read_bytes() for path in asked]
    context.set_offline(True)
    page, second = visited(context, address)
    return page, {
        "first_visit_seconds": first,
        "first_visit_bytes": sum(map(len, files)),
        "first_visit_bytes_compressed": sum(len(gzip.compress(content, 6)) for content in files),
        "second_visit_offline_seconds": second,
    }


def drags(page: Page, count: int) -> dict[str, Any]:
    """Steps of two pixels on the screen, to and fro."""
    page.wait_for_selector("#tree .edge", state="attached")
    page.evaluate("() => scrollTo(0, 0)")
    box = page.locator("#handles .frame").last.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(WATCH)
    for step in range(WARM_UP + count):
        away = abs(step % 60 - 30)
        page.mouse.move(x - 60 + 4 * away, y + away)
        page.wait_for_function("(count) => window.steps.length > count", arg=step)
        page.wait_for_timeout(FRAME_MS)
    page.mouse.up()
    answers, painted = zip(*page.evaluate("() => window.steps")[WARM_UP : WARM_UP + count], strict=True)
    return {"answer": summary(answers), "painted": summary(painted)}


def summary(milliseconds: tuple[float, ...]) -> dict[str, float]:
    cuts = statistics.quantiles(milliseconds, n=100)
    return {"median_ms": round(cuts[49], 1), "p95_ms": round(cuts[94], 1), "longest_ms": round(max(milliseconds), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="capsnet-multimnist-fine")
    parser.add_argument("--drags", type=int, default=200)
    parser.add_argument("--site", type=Path, help="a published site whose first model is measured")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        site = args.site or Path(folder) / "site"
        if args.site is None:
            subprocess.run([sys.executable, "-m", "torchcaps", "publish", args.model, "--out", str(site)], check=True)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        context = browser.new_context(viewport={"width": 1280, "height": 1100})
        model = json.loads((site / "site.json").read_text())["models"][0]["id"]
        page, cost = visits(context, site, Path(folder))
        spent = drags(page, args.drags)
        version = browser.version
        browser.close()
    result = {
        "command": " ".join(["python", *sys.argv]),
        "model": model,
        "drags": args.drags,
        **spent,
        **cost,
        "seconds": round(time.monotonic() - began, 1),
        "browser": f"Chromium {version}, WebAssembly on one thread",
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            "real_time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
        },
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "drags.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
