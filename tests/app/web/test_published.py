"""A published site on a plain web host: the answers of Python, every model, and no connection after the first visit."""

import base64
import gzip
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import hosting
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from test_browser import visit

from torchcaps.app.web.engine import Engine, Question
from torchcaps.data.readers.pictures import to_bytes
from torchcaps.data.sources.catalogue import WEBGPU_FILES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FIRST_VISIT, COMPRESSED = 18_000_000, 6_000_000
ASK = """async ([pixels, parents]) => {
  const engine = await (await import("/js/engines/browser.js")).connect();
  const image = Uint8Array.from(pixels);
  const answer = await engine.look(image);
  const routed = await engine.route({ image, parents });
  return { ...answer, pictures: answer.pictures?.map((picture) => [...picture]), routed };
}"""
READ = """async ([text, image, handwritten]) => {
  const { readPicture } = await import("/js/engines/pictures.js");
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return [...(await readPicture(new File([bytes], "picture", { type: "image/png" }), image, handwritten))];
}"""


@pytest.mark.parametrize("name", ["digits", "toys", "photographs"])
def test_the_browser_answers_as_python_does(browser: Browser, site_address: str, engines: dict[str, Engine], name: str):
    page = visit(browser, f"{site_address}/#model={name}")
    check_answers(page, engines[name])
    assert page.troubles == []
    page.close()


def check_answers(page: Page, engine: Engine) -> dict[str, Any]:
    """Everything that the page's engine answers about an image is what Python answers."""
    pixels = torch.randint(0, 256, engine.image, generator=torch.Generator().manual_seed(5))
    found = page.evaluate(ASK, [pixels.flatten().tolist(), [1, 0]])
    image = pixels / 255
    with torch.no_grad():
        expected = engine.model(image[None])
    assert found["lengths"] == pytest.approx(expected.lengths[0].tolist(), abs=1e-4)
    assert found["longest"] == expected.lengths[0].topk(engine.objects).indices.tolist()
    torch.testing.assert_close(torch.tensor(found["capsules"]), expected.capsules[0], atol=1e-4, rtol=1e-4)
    assert (found["pictures"] is None) == (engine.decoder is None)
    if engine.decoder is not None:
        drawn = torch.tensor(found["pictures"]).view(engine.objects, *engine.image) / 255
        torch.testing.assert_close(drawn, expected.reconstruction.view_as(drawn), atol=1 / 255, rtol=0)
    (steps,) = engine.route([Question(image, [1, 0])])
    assert [round(x) for x in found["corner"]] == steps["corner"]
    assert found["routed"]["activations"] == pytest.approx(steps["activations"], abs=1e-4)
    # Self-attention does not repeat.
    assert len(found["routed"]["iterations"]) == (5 if engine.model.classes.routing.iterations > 1 else 1)
    for mine, theirs in zip(found["routed"]["iterations"], steps["iterations"], strict=True):
        for key in ("lengths", "spread", "couplings", "agreement"):
            ours = torch.tensor(theirs[key])
            torch.testing.assert_close(torch.tensor(mine[key]), ours, atol=2e-4, rtol=1e-4)
    return found


def test_a_file_is_prepared_as_python_prepares_it(browser: Browser, site_address: str, engines: dict[str, Engine]):
    paper = Image.linear_gradient("L").resize((90, 120)).point(lambda value: 255 - value // 8)
    paper.paste(20, (30, 25, 60, 100))
    colour = Image.merge(
        "RGB", [Image.radial_gradient("L"), Image.linear_gradient("L"), Image.new("L", (256, 256), 90)]
    )
    page = visit(browser, site_address)
    for name, picture in (("digits", paper), ("photographs", colour.resize((70, 50)))):
        data, image = engines[name].data, engines[name].image
        file = io.BytesIO()
        picture.save(file, "PNG")
        found = page.evaluate(READ, [base64.b64encode(file.getvalue()).decode(), image, data.handwritten])
        apart = np.abs(np.array(found).reshape(image) - to_bytes(picture, image, data.handwritten).astype(int))
        assert apart.max() <= 3
    page.close()


def test_one_visit_is_enough(browser: Browser, site: Path, tmp_path: Path):
    with hosting(site, tmp_path / "requests.log") as address:
        context = browser.new_context()
        page = visit(context, address)
        expect(page.locator("#tree .edge").first).to_be_attached()
        asked = re.findall(r'"GET (\S+) HTTP/1.1" 200', (tmp_path / "requests.log").read_text())
        files = [(site / (path.lstrip("/") or "index.html")).read_bytes() for path in asked]
        assert sum(map(len, files)) < FIRST_VISIT
        assert sum(len(gzip.compress(content, 6)) for content in files) < COMPRESSED
        assert not any(path.endswith(WEBGPU_FILES) for path in asked)
        assert sum(path.endswith(".wasm") for path in asked) == 1
        page.close()
    # The host is gone now.
    context.set_offline(True)
    again = visit(context, address)
    lengths = again.locator(".bar .value").all_inner_texts()
    again.get_by_role("button", name="Shuffle").click()
    again.wait_for_function(
        "(before) => [...document.querySelectorAll('.bar .value')].some((value, k) => value.textContent !== before[k])",
        arg=lengths,
    )
    assert again.troubles == []
    context.close()


def test_a_visitor_chooses_the_model(browser: Browser, site_address: str):
    page = visit(browser, site_address, viewport={"width": 390, "height": 844})
    with page.expect_navigation():
        page.locator("#model").select_option("photographs")
    page.wait_for_selector("html[data-ready]")
    expect(page.locator("#verdict")).not_to_be_empty()
    expect(page.get_by_role("slider", name="Skew picture 1")).to_be_visible()
    assert "slant" not in page.locator("main").inner_text().lower()
    page.get_by_role("button", name="Shuffle").click()
    page.wait_for_function("() => location.hash.includes('model=photographs')")
    few = page.locator(".bar:visible").count()
    assert few <= 13
    check_layout(page)
    page.get_by_role("button", name="Show all 200 classes").click()
    assert page.locator(".bar:visible").count() == 200
    check_layout(page)
    assert page.troubles == []
    page.close()


def test_toys_routed_by_em(browser: Browser, site_address: str):
    page = visit(browser, f"{site_address}/#model=toys", viewport={"width": 390, "height": 844})
    shown = page.locator(".panel:visible").evaluate_all("(all) => all.map((panel) => panel.id)")
    assert shown == ["compose", "see", "routing"]
    expect(page.locator("#lead-matrices")).to_be_visible()
    expect(page.locator("#tree .edge").first).to_be_attached()
    for number in range(1, 6):
        page.get_by_role("radio", name=f"Round {number}").check(force=True)
        expect(page.locator("#fan text.strong")).to_have_text(str(number))
    check_layout(page)
    assert page.troubles == []
    page.close()


def check_layout(page: Page) -> None:
    """Nothing is wider than the screen, and all bars begin and end at the same place."""
    assert page.evaluate("() => document.documentElement.scrollWidth") <= page.viewport_size["width"]
    tracks = page.locator(".bar:visible .track").evaluate_all(
        "(all) => all.map((track) => { const box = track.getBoundingClientRect(); return [box.left, box.right]; })"
    )
    left, right = zip(*tracks, strict=True)
    assert max(left) - min(left) < 0.5
    assert max(right) - min(right) < 0.5
    assert min(right) - max(left) > 60
