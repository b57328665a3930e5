"""axe-core finds nothing serious, in light and in dark, on a desk and on a phone."""

import pytest
from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe(browser, address, axe_source, scheme, width):
    check(browser, address, axe_source, scheme, width)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scheme", "width"), [("toys", "light", 1280), ("photographs", "dark", 390)])
def test_axe_on_a_published_site(browser, site_address, axe_source, name, scheme, width):
    check(browser, f"{site_address}/#model={name}", axe_source, scheme, width)


def check(browser: Browser, address: str, axe_source: str, scheme: str, width: int) -> None:
    context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector("#tree .edge", state="attached")
    page.evaluate(axe_source)
    results = page.evaluate("() => axe.run()")
    context.close()
    serious = [
        f"{violation['id']} ({violation['impact']}): {violation['nodes'][0]['html'][:200]}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert len(results["passes"]) > 10
