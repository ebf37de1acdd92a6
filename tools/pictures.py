"""Draw the pictures of the README and the documentation from real runs: `make pictures`.

Each comes in a light and a dark variant: terminal sessions as SVG, parts of the page as PNG, from Chromium. Weights are
random and seeded; the figures in the pictures are those of the machine that drew them.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs" / "assets" / "pictures"
COLUMNS = 92
TORCHGAUGE = (sys.executable, "-m", "torchgauge")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NORMAL = [(0, 0, 0), (178, 34, 34), (30, 120, 60), (150, 100, 0), (30, 90, 190), (130, 60, 150), (0, 110, 130)]
BRIGHT = [
    (120, 124, 130),
    (255, 110, 100),
    (90, 200, 120),
    (230, 190, 80),
    (110, 170, 255),
    (210, 140, 230),
    (80, 200, 220),
]
THEMES = {
    "light": TerminalTheme((255, 255, 255), (36, 41, 47), [*NORMAL, (110, 118, 129)], [*NORMAL, (60, 66, 72)]),
    "dark": TerminalTheme((22, 27, 34), (230, 237, 243), [*BRIGHT, (177, 186, 196)], [*BRIGHT, (240, 246, 252)]),
}
# rich's own frame loads a font from the network; this one takes what the reader's machine has.
FRAME = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"><style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}</style><defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""
SESSIONS = {
    "report": (["torchgauge", "timm:resnet50"], 43),
    "comparison": (["torchgauge", "compare", "timm:resnet18", "timm:resnet34"], 24),
}
# The id of a section, and how much of it the picture shows in CSS pixels: each ends after a part of the section.
SECTIONS = {"map": 700, "graph": 640, "memory": 560, "roofline": 620, "weights": 670}
MARGIN = 16
NET = """
import torch
from torchgauge.source import ensure_torchvision_imports
ensure_torchvision_imports()
import timm
torch.manual_seed(0)
torch.save(timm.create_model("resnet18").state_dict(), "resnet18.pt")
"""


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, (command, lines) in SESSIONS.items():
        draw_session(name, command, lines)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        subprocess.run([sys.executable, "-c", NET], cwd=folder, check=True)
        profile = [*TORCHGAUGE, "resnet18.pt", "--as", "timm:resnet18", "--profile", "--quiet", "-o", "page.html"]
        subprocess.run(profile, cwd=folder, check=True)
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        for scheme in THEMES:
            draw_sections(browser, Path(folder, "page.html"), scheme)
        browser.close()
    total = sum(path.stat().st_size for path in PICTURES.iterdir())
    print(f"{len(list(PICTURES.iterdir()))} pictures in {PICTURES}, {total / 1024:.0f} KiB")


def draw_session(name: str, command: list[str], lines: int) -> None:
    """The first lines of what a command writes to a terminal."""
    text = Text.assemble((f"$ {' '.join(command)}\n", "bold"), Text.from_ansi(run_in_terminal(command[1:])))
    shown = Text("\n").join(text.split("\n")[:lines])
    for scheme, theme in THEMES.items():
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
            console.print(shown, soft_wrap=True)
            svg = console.export_svg(title=name, theme=theme, code_format=FRAME, unique_id=f"{name}-{scheme}")
        (PICTURES / f"{name}-{scheme}.svg").write_text(svg, encoding="utf-8")


def run_in_terminal(arguments: list[str]) -> str:
    """What torchgauge writes to a terminal, colours included; stderr, with its progress, is left out."""
    reader, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    written = b""
    with subprocess.Popen([*TORCHGAUGE, *arguments], stdout=terminal, stderr=subprocess.DEVNULL, env=environment):
        os.close(terminal)
        try:
            while chunk := os.read(reader, 65536):
                written += chunk
        except OSError:  # a terminal whose last writer is gone
            pass
    os.close(reader)
    return written.decode().replace("\r\n", "\n")


def draw_sections(browser: Browser, page_file: Path, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": 1000, "height": 800}, color_scheme="dark" if scheme == "dark" else "light", offline=True
    )
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.add_style_tag(content="nav { display: none }")
    for name, height in SECTIONS.items():
        section = page.locator(f"#{name}")
        section.evaluate("section => section.scrollIntoView()")
        page.wait_for_timeout(1000)  # charts are drawn when they come into view
        box = section.bounding_box()
        assert box is not None, name
        left, top = max(box["x"] - MARGIN, 0), max(box["y"] - MARGIN, 0)
        width = min(box["width"] + 2 * MARGIN, 1000 - left)
        page.screenshot(
            path=PICTURES / f"{name}-{scheme}.png",
            clip={"x": left, "y": top, "width": width, "height": min(box["height"], height) + MARGIN},
        )
    context.close()


def find_browser() -> str:
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        raise SystemExit(f"the pictures of the page need a browser: none of {', '.join(BROWSERS)} is installed")
    return found


if __name__ == "__main__":
    main()
