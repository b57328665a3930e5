"""What a person does with the page, done in the system's Chromium: served by torchcaps, and published as a site."""

import io
import re
from collections.abc import Iterator

import pytest
from conftest import running
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, expect

from torchcaps.app.web.engine import Engine
from torchcaps.models.registry import create_model

pytestmark = pytest.mark.browser

PATIENCE = 30_000
expect.set_options(timeout=PATIENCE)
PIXELS = "() => Array.from(document.querySelector('%s').getContext('2d').getImageData(0, 0, 36, 36).data)"
LENGTHS = "() => [...document.querySelectorAll('.bar .value')].map((value) => value.textContent)"


def visit(browser: Browser | BrowserContext, url: str, patience: float = PATIENCE, **options: object) -> Page:
    """A page that is ready. What it logs as an error or asks of another machine is kept in its `troubles`."""
    page = browser.new_page(**options)
    page.set_default_timeout(patience)
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("console", lambda message: message.type == "error" and page.troubles.append(message.text))
    origin = "/".join(url.split("/")[:3])
    page.on("request", lambda r: r.url.startswith((origin, "data:", "blob:")) or page.troubles.append(r.url))
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    expect(page.locator("#verdict")).not_to_be_empty()
    return page


@pytest.fixture(scope="module")
def visitors(browser: Browser) -> Iterator[BrowserContext]:
    """One visitor of the published site, so that its runtime is loaded once."""
    context = browser.new_context(viewport={"width": 1280, "height": 1100})
    yield context
    context.close()


@pytest.fixture(params=["server", "site"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    if request.param == "server":
        address = request.getfixturevalue("address")
        opened = visit(browser, address, viewport={"width": 1280, "height": 1100})
    else:
        address = request.getfixturevalue("site_address")
        opened = visit(request.getfixturevalue("visitors"), address)
    yield opened
    assert opened.troubles == []
    opened.close()


served = pytest.mark.parametrize("page", ["server"], indirect=True)
"""For what does not depend on the engine."""


def changed(page: Page, expression: str, before: object) -> None:
    page.wait_for_function(f"(before) => JSON.stringify(({expression})()) !== JSON.stringify(before)", arg=before)


def test_draw(page):
    page.get_by_role("button", name="Clear").click()
    assert max(page.evaluate(PIXELS % "#canvas")[0::4]) == 0
    page.wait_for_timeout(300)
    lengths = page.evaluate(LENGTHS)
    box = page.locator("#canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"]
    page.mouse.move(x, y + box["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(x, y + box["height"] * 0.8, steps=8)
    page.mouse.up()
    red = page.evaluate(PIXELS % "#canvas")[0::4]
    assert red[18 * 36 + 18] == 255
    assert red[18 * 36 + 2] == 0
    changed(page, LENGTHS, lengths)
    page.get_by_role("radio", name="Erase").check(force=True)
    page.mouse.click(x, y + box["height"] / 2)
    assert page.evaluate(PIXELS % "#canvas")[0::4][18 * 36 + 18] == 0


def test_drag_turn_scale_and_slant(page):
    for selector, distance in (
        (".frame.selected", (30, 0)),
        (".handle.turn", (30, 10)),
        (".handle.size", (25, 25)),
        (".handle.slant", (20, 0)),
    ):
        before, lengths = page.evaluate(PIXELS % "#canvas"), page.evaluate(LENGTHS)
        box = page.locator(selector).bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + distance[0], y + distance[1], steps=4)
        page.mouse.up()
        assert page.evaluate(PIXELS % "#canvas") != before, selector
        changed(page, LENGTHS, lengths)
    # The address follows a moment after the last change.
    page.wait_for_function(
        "() => Number(decodeURIComponent(location.hash.match(/layers=([^_&]+)/)?.[1] ?? '').split('~')[5])"
    )
    values = re.search(r"layers=([^_&]+)", page.url)[1].replace("%7E", "~").split("~")
    x, _, turn, size, _ = (float(value) for value in values[1:])
    assert x != -4
    assert turn != 0
    assert size > 1


@served
def test_bars_and_pictures_follow(page):
    labels = page.locator(".bar[data-tone=red] .label, .bar[data-tone=green] .label").all_inner_texts()
    captions = page.locator("#tiles figcaption").all_inner_texts()
    assert len(labels) == 2
    for label in labels:
        assert any(f"capsule {label}" in caption for caption in captions)
    assert any("red and green" in caption for caption in captions)


def test_tweak(page):
    before = page.evaluate(PIXELS % "#tweaked")
    slider = page.get_by_role("slider", name="Number 3", exact=True)
    slider.fill("0.4")
    changed(page, PIXELS % "#tweaked", before)
    expect(page.locator("#tweaked-caption")).to_contain_text("tweaked")
    expect(page.locator("#play")).to_have_text("What does number 3 do?")
    expect(page.locator("#strip button")).to_have_count(9)
    page.locator("#play").click()
    expect(page.locator("#play")).to_have_text("Stop")
    moving = page.evaluate(PIXELS % "#tweaked")
    changed(page, PIXELS % "#tweaked", moving)
    page.locator(".bar").nth(4).click()
    # At once, not when the animation would have ended by itself.
    expect(page.locator("#play")).to_have_text("What does number 3 do?", timeout=4000)
    page.get_by_role("button", name="Reset").click()
    expect(page.locator("#tweaked-caption")).to_contain_text("as it is")
    changed(page, PIXELS % "#tweaked", page.evaluate("() => []"))
    page.locator(".bar").nth(5).click()
    expect(page.locator("#tweak-of")).to_have_text("capsule 5")
    expect(page.locator("#routing-of")).to_have_text("to capsule 5")


def test_step_the_routing(page):
    heat = "() => document.querySelector('#coupling canvas').toDataURL()"
    tree = "() => [...document.querySelectorAll('#tree .edge')].map((edge) => edge.getAttribute('stroke-width'))"
    expect(page.locator("#tree .edge").first).to_be_attached()
    seen = set()
    for round_ in range(1, 6):
        page.get_by_role("radio", name=f"Round {round_}").check(force=True)
        expect(page.locator("#fan text.strong")).to_have_text(str(round_))
        seen.add(page.evaluate(heat))
    assert len(seen) == 5
    last = page.evaluate(tree)
    page.get_by_role("radio", name="Round 1").check(force=True)
    changed(page, tree, last)
    assert len(set(page.evaluate(tree))) == 1, "in the first round all couplings are alike"
    box = page.locator("#coupling canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#tip")).to_contain_text("coupling 0.100")
    page.locator("#rounds").click()
    expect(page.locator("#fan text.strong")).to_have_text("3")


def test_upload(page):
    page.set_input_files("#file", {"name": "notes.png", "mimeType": "image/png", "buffer": b"this is not a picture"})
    expect(page.get_by_role("alert")).to_contain_text("The picture is not an image that can be read")
    page.troubles.clear()  # Chromium logs the 422 that was asked for
    page.get_by_role("button", name="Shuffle").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_role("slider", name="Number 3", exact=True).fill("0.4")
    page.wait_for_function("() => location.hash.includes('nudges=')")
    file = io.BytesIO()
    Image.radial_gradient("L").resize((36, 36)).save(file, "PNG")
    page.set_input_files("#file", {"name": "light.png", "mimeType": "image/png", "buffer": file.getvalue()})
    expect(page.get_by_role("alert")).to_be_hidden()
    page.wait_for_function("() => location.hash.includes('ink=')")
    assert "nudges=" not in page.url, "another picture's capsule has not been tweaked"
    assert len(set(page.evaluate(PIXELS % "#canvas"))) > 50


@served
def test_the_skip_link_leaves_the_composition(page):
    page.get_by_role("button", name="Shuffle").click()
    page.evaluate("() => { window.isSame = true; }")
    before = page.evaluate(PIXELS % "#canvas")
    page.locator("a.skip").focus()
    page.keyboard.press("Enter")
    page.wait_for_timeout(500)
    assert page.evaluate("() => window.isSame") is True
    assert page.evaluate(PIXELS % "#canvas") == before


def test_a_shared_address_brings_everything_back(browser, page):
    page.get_by_role("button", name="Shuffle").click()
    page.locator(".bar").nth(8).click()
    page.get_by_role("slider", name="Number 2", exact=True).fill("-0.2")
    page.get_by_role("radio", name="Round 5").check(force=True)
    page.wait_for_function("() => location.hash.includes('round=5') && location.hash.includes('nudges=')")
    other = visit(browser, page.url)
    assert other.evaluate(PIXELS % "#canvas") == page.evaluate(PIXELS % "#canvas")
    expect(other.locator("#tweak-of")).to_have_text("capsule 8")
    expect(other.get_by_role("slider", name="Number 2", exact=True)).to_have_value("-0.2")
    expect(other.get_by_role("radio", name="Round 5")).to_be_checked()
    other.close()
    address = page.url.partition("#")[0]
    nonsense = visit(
        browser, f"{address}#layers=1~NaN~~_x_99999~0~0~0~1~0&ink=%%%&capsule=77&round=-1&nudges=a_b&model=none"
    )
    assert nonsense.troubles == []
    nonsense.close()


def test_save(page):
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save picture").click()
    with Image.open(saved.value.path()) as picture:
        assert picture.format == "PNG"
    page.get_by_role("button", name="Record GIF").click()
    thumb = page.locator(".thumb").first
    for _ in range(3):
        lengths = page.evaluate(LENGTHS)
        for _ in range(2):
            thumb.press("ArrowRight")
        changed(page, LENGTHS, lengths)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Stop and save").click()
    with Image.open(saved.value.path()) as animation:
        assert animation.format == "GIF"
        assert animation.n_frames >= 3
        frames = []
        for frame in range(animation.n_frames):
            animation.seek(frame)
            frames.append(animation.convert("RGB").tobytes())
    assert len(set(frames)) >= 3


@served
def test_keyboard_alone(page):
    def tab_to(selector: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        pytest.fail(f"{selector} cannot be reached with the Tab key")

    tab_to(".thumb")
    before = page.evaluate(PIXELS % "#canvas")
    for key in ("ArrowLeft", "ArrowDown", "]", "+", "."):
        page.keyboard.press(key)
        after = page.evaluate(PIXELS % "#canvas")
        assert after != before, key
        before = after
    tab_to(".bar:nth-child(4)")
    page.keyboard.press("Enter")
    expect(page.locator("#tweak-of")).to_have_text("capsule 3")
    tab_to("#sliders input")
    before = page.evaluate(PIXELS % "#tweaked")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    changed(page, PIXELS % "#tweaked", before)
    tab_to("#film input")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="Round 4")).to_be_checked()
    tab_to("#coupling canvas")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#readout")).to_contain_text("Row 1, column 2, to 3: coupling")


@served
@pytest.mark.parametrize("width", [360, 390, 768, 1280, 1920])
def test_it_fits_any_screen(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    box = page.locator("#canvas").bounding_box()
    assert box["width"] == pytest.approx(box["height"], abs=1)
    assert box["width"] >= 250


def test_a_finger_draws_on_a_phone(browser, address):
    page = visit(browser, address, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.get_by_role("button", name="Clear").tap()
    page.locator("#stage").scroll_into_view_if_needed()
    box = page.locator("#canvas").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("() => location.hash.includes('ink=')")
    assert page.troubles == []
    page.close()


@pytest.mark.parametrize(
    ("name", "data", "panels"),
    [
        ("capsnet-mnist-small", "mnist", ["compose", "see", "tweak", "routing"]),
        ("capsnet-cifar10", "cifar10", ["compose", "see", "routing"]),
        ("cnn-multimnist-small", "multimnist", ["compose", "see"]),
    ],
)
def test_the_page_adapts_to_the_model(browser, name, data, panels):
    overrides = {"channels": 16, "primary_types": 2} if data == "cifar10" else {}
    with running(Engine(create_model(name, **overrides).eval(), name, data)) as address:
        page = visit(browser, address)
        assert page.locator(".panel:visible").evaluate_all("(all) => all.map((panel) => panel.id)") == panels
        expect(page.locator(".bar")).to_have_count(10)
        assert page.troubles == []
        page.close()
