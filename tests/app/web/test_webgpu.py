"""A published site where there is a graphics processor: the answers of Python, and WebAssembly where WebGPU fails."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CHROMIUM_FLAGS, hosting
from playwright.sync_api import Browser, BrowserContext, Page, expect
from test_browser import visit
from test_published import check_answers

from torchcaps.app.web.engine import Engine
from torchcaps.data.sources.catalogue import WEBGPU_FILES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATIENCE = 180_000
"""Shaders that the processor imitates take seconds to compile."""
# SwiftShader is the processor in the role of a graphics processor.
GPU_FLAGS = [*CHROMIUM_FLAGS.replace("--disable-gpu ", "").split(), "--enable-unsafe-webgpu"]
GPU_FLAGS += ["--use-webgpu-adapter=swiftshader"]
HAS_ADAPTER = "async () => Boolean(await navigator.gpu?.requestAdapter())"
ADAPTER = 'Object.defineProperty(navigator, "gpu", { value: { requestAdapter: async () => ({ info: {} }) } });'
# The worker for WebGPU runs WebAssembly, and claims that its answers are `apart` from it and took `milliseconds`.
CLAIMS = """
window.Worker = class extends Worker {
  postMessage(message) {
    this.runtime ??= message.question.runtime;
    const question = message.task === "load" ? { ...message.question, runtime: "wasm" } : message.question;
    super.postMessage({ ...message, question });
  }
  addEventListener(type, listener) {
    super.addEventListener(type, ({ data }) => {
      if (this.runtime === "webgpu" && data.answer?.lengths) data.answer.by = "WebGPU";
      if (this.runtime === "webgpu" && data.answer?.values) {
        data.answer.values[3] += APART;
        data.answer.milliseconds = MILLISECONDS;
      }
      listener({ data });
    });
  }
};
"""


@pytest.fixture(scope="module")
def gpu_browser(browser: Browser, site_address: str) -> Iterator[Browser]:
    started = browser.browser_type.launch(executable_path=shutil.which("chromium"), args=GPU_FLAGS)
    page = started.new_page()
    page.goto(f"{site_address}/NOTICE.txt")
    has_adapter = page.evaluate(HAS_ADAPTER)
    page.close()
    if not has_adapter:
        started.close()
        pytest.skip("this Chromium has no WebGPU adapter, not even SwiftShader's")
    yield started
    started.close()


@pytest.mark.parametrize("name", ["digits", "toys", "photographs"])
def test_webgpu_answers_as_python_does(gpu_browser: Browser, site_address: str, engines: dict[str, Engine], name: str):
    page = gpu_browser.new_page()
    # A file without scripts, so that only the engine that is asked for starts.
    page.goto(f"{site_address}/NOTICE.txt?engine=webgpu#model={name}")
    found = check_answers(page, engines[name])
    assert found["by"] == "WebGPU"
    page.close()


def test_a_second_visit_needs_no_connection(gpu_browser: Browser, site: Path, tmp_path: Path):
    context = gpu_browser.new_context()
    with hosting(site, tmp_path / "requests.log") as address:
        check_engine(visit(context, f"{address}/?engine=webgpu", PATIENCE), "WebGPU")
    context.set_offline(True)
    check_engine(visit(context, f"{address}/?engine=webgpu", PATIENCE), "WebGPU")
    context.close()


def test_an_imitated_graphics_processor_is_not_worth_its_files(gpu_browser: Browser, site: Path, tmp_path: Path):
    log = tmp_path / "requests.log"
    with hosting(site, log) as address:
        for query in ("", "?engine=wasm"):
            page = visit(gpu_browser, f"{address}/{query}")
            page.wait_for_timeout(1000)
            check_engine(page, "WebAssembly")
    assert asked_for_webgpu(log) == []


def test_an_engine_that_is_not_there_is_one_line(browser: Browser, site: Path, tmp_path: Path):
    log = tmp_path / "requests.log"
    says = {
        "?engine=webgpu": "The address asks for WebGPU, but this browser has none. WebAssembly answers.",
        "?engine=abacus": "There is no engine “abacus”: the address may ask for engine=wasm or engine=webgpu.",
    }
    with hosting(site, log) as address:
        for query, line in says.items():
            check_engine(visit(browser, f"{address}/{query}"), "WebAssembly", line)
    assert asked_for_webgpu(log) == []


def test_a_driver_that_fails_leads_to_webassembly(browser: Browser, site: Path, tmp_path: Path):
    """There seems to be an adapter, but not for the worker."""
    log = tmp_path / "requests.log"
    with hosting(site, log) as address:
        context = browser.new_context()
        context.add_init_script(ADAPTER)
        check_engine(judged(context, address, "it does not run this network"), "WebAssembly")
        assert len(asked_for_webgpu(log)) == len(WEBGPU_FILES)
        line = "The address asks for WebGPU, but it does not run this network. WebAssembly answers."
        check_engine(visit(context, f"{address}/?engine=webgpu"), "WebAssembly", line)
        context.close()


@pytest.mark.parametrize(
    ("apart", "milliseconds", "verdict"), [(0.01, 0.1, "its answers are wrong"), (1e-5, 1e6, "it takes 1000000.0 ms")]
)
def test_webgpu_that_is_wrong_or_slow_is_not_used(browser: Browser, site_address: str, apart, milliseconds, verdict):
    context = browser.new_context()
    context.add_init_script(claim(apart, milliseconds))
    check_engine(judged(context, site_address, verdict), "WebAssembly")
    context.close()


def test_webgpu_that_is_right_and_fast_takes_over(browser: Browser, site_address: str):
    context = browser.new_context()
    context.add_init_script(claim(1e-5, 0.1))
    page = visit(context, site_address)
    for _ in range(50):
        page.get_by_role("button", name="Shuffle").click()
        page.wait_for_timeout(200)
        if "WebGPU" in page.locator("#bars-legend").inner_text():
            break
    check_engine(page, "WebGPU")
    context.close()


def claim(apart: float, milliseconds: float) -> str:
    return ADAPTER + CLAIMS.replace("APART", str(apart)).replace("MILLISECONDS", str(milliseconds))


def judged(context: BrowserContext, address: str, verdict: str) -> Page:
    """The page, after it found that WebGPU is not to be used."""
    with context.expect_console_message(lambda message: verdict in message.text):
        page = visit(context, address)
    page.get_by_role("button", name="Shuffle").click()
    return page


def check_engine(page: Page, name: str, line: str = "") -> None:
    expect(page.locator("#bars-legend")).to_contain_text(re.compile(rf"Answered in \d+\sms by {name}\."))
    expect(page.locator("#notice")).to_have_text(line)
    assert page.troubles == []
    page.close()


def asked_for_webgpu(log: Path) -> list[str]:
    asked = re.findall(r'"GET (\S+) HTTP/1.1"', log.read_text())
    return [path for path in asked if path.endswith(WEBGPU_FILES)]
