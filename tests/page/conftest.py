"""Pages in a real browser: one Chromium per process, and no page may log an error or ask for anything else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.page.large_sample import LARGE_BLOCKS, large_view
from torchgauge import report
from torchgauge.facts import View

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip
# A page may wait for a slow machine that runs other tests as well.
PATIENCE_MS = 30_000

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture(scope="session")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of LARGE_BLOCKS blocks: 20,000 ops in 15,001 modules."""
    return _written(large_view(LARGE_BLOCKS), tmp_path_factory.mktemp("large") / "large.html")


def wait_until(page: Page, condition: str, arg: object = None) -> None:
    """Playwright's `wait_for_function` evaluates text inside the page from its second look on, which the page's content
    security policy forbids."""
    for _ in range(PATIENCE_MS // 50):
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within {PATIENCE_MS / 1000:g} s: {condition}")


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """`open_page(analysis or path, width=…, height=…, scheme="dark")`; checks at the end of the test that the page was
    quiet: no error, no warning, no request but for itself. Every section is drawn once the page is loaded, also after a
    reload, unless the test is about drawing late (`is_drawn=False`)."""
    contexts: list[BrowserContext] = []
    noises: list[str] = []

    def open_one(
        subject: View | Path | str,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: Literal["light", "dark"] = "light",
        is_quiet: bool = True,
        is_drawn: bool = True,
    ) -> Page:
        path = _written(subject, tmp_path / f"{len(contexts)}.html")
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        if is_quiet:
            page.on("console", lambda message: noises.append(f"console {message.type}: {message.text}"))
            page.on("pageerror", lambda error: noises.append(f"error: {error}"))
        page.on("request", lambda request: _note_request(request.url, path, noises))
        if is_drawn:
            # Sections are drawn when an observer reports that they are near, which may be after a test has read them.
            page.add_init_script("addEventListener('DOMContentLoaded', () => tg.drawAll())")
        page.goto(path.as_uri())
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not noises


def _written(subject: View | Path | str, path: Path) -> Path:
    if isinstance(subject, View):
        report.save(subject, path)
        return path
    return Path(subject)


def _note_request(url: str, path: Path, noises: list[str]) -> None:
    if url.partition("#")[0] != path.as_uri():
        noises.append(f"request: {url}")
