"""Pages in a browser: `python -m tools.screenshots --out FOLDER [--only NAME ...] [--keep] [--chromium chromium]`.

Makes each page of `SHOTS` once, opens it in headless Chromium, and writes a picture of the whole of it, or a print to
PDF, to FOLDER, to be looked at. With `--keep`, the tops of those that the documentation shows go to `docs/_static/`.
Fails where a page is wider than its window. To add a picture, add a source, a function that writes a page into a
folder, and a line to `SHOTS`.
"""

import argparse
import fcntl
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.reporting import progress
from counterpoise.predictions import Header, Predictions, write_predictions
from counterpoise.report.page import write_report
from counterpoise.scoring import score_files

ROOT = Path(__file__).parent.parent
STATIC = ROOT / "docs" / "_static"
GOLDEN = ROOT / "tests" / "golden" / "evaluation"
DAY = date(2026, 1, 1)
"""That the pictured pages state, so that the same code gives the same pictures."""

CLASSES = ("bird", "boat", "car", "cat", "deer", "dog", "frog", "horse", "plane", "truck")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
THEMES = {"light": 1, "dark": 0}
WIDE, NARROW = 1280, 390


@dataclass(frozen=True)
class Shot:
    """A picture of a page.

    Attributes:
        name: of its file.
        source: writes the page into a folder, and returns its file.
        width: of the window.
        scheme: light, dark, or pdf for a print.
        kept: pixels from its top that the documentation shows; None where it does not.
    """

    name: str
    source: Callable[[Path], Path]
    width: int
    scheme: str
    kept: int | None = None


def comparison_report(folder: Path) -> Path:
    """The report on two simulated models of ten classes: one overconfident, the other less accurate and calibrated."""
    generator = torch.Generator().manual_seed(0)
    truth = 6 * torch.randn(4000, 10, generator=generator)
    labels = torch.multinomial(torch.softmax(truth, -1), 1, generator=generator).squeeze(-1)
    unknown = 3 * torch.randn(1000, 10, generator=generator)
    for name, factor, noise in (("sharp", 2.0, 0.4), ("calm", 0.95, 0.7)):
        header = Header(model=name, class_names=CLASSES)
        logits = factor * (truth + noise * torch.randn(truth.shape, generator=generator))
        strange = factor * (unknown + noise * torch.randn(unknown.shape, generator=generator))
        write_predictions(folder / f"{name}.parquet", Predictions.of(logits=logits, labels=labels, header=header))
        write_predictions(
            folder / f"{name}-ood.parquet", Predictions.of(logits=strange, data_set="unknown", header=header)
        )
    ood = [f"{name}-ood.parquet" for name in ("sharp", "calm")]
    return _report(folder, "comparison.html", ["sharp.parquet", "calm.parquet"], ood)


def single_report(folder: Path) -> Path:
    """The report on a model of `tests/golden/evaluation`, which has corruptions, domains and OOD samples."""
    for file in GOLDEN.glob("ce.parquet*"):
        shutil.copy(file, folder)
    return _report(folder, "single.html", ["ce.parquet"], [])


def _report(folder: Path, page: str, models: list[str], ood: list[str]) -> Path:
    with chdir(folder):  # pages state paths as they were given
        write_report(page, score_files(models, ood=ood), day=DAY)
    return folder / page


def terminal(folder: Path, *, columns: int) -> Path:
    """What `counterpoise evaluate` prints of two models on a terminal of that width."""
    from rich.console import Console
    from rich.text import Text

    comparison_report(folder)
    here, there = os.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "counterpoise", "evaluate", "sharp.parquet", "calm.parquet"]
    process = subprocess.Popen(command, cwd=folder, stdout=there, stderr=subprocess.DEVNULL)
    os.close(there)
    printed = b""
    with suppress(OSError):  # the other end closes
        while part := os.read(here, 1 << 16):
            printed += part
    process.wait()
    console = Console(record=True, width=columns, file=io.StringIO())
    console.print(Text.from_ansi(printed.decode().replace("\r", "")), soft_wrap=True)
    target = folder / f"terminal-{columns}.html"
    target.write_text(console.export_html(inline_styles=True))
    return target


def site(folder: Path, *, page: str) -> Path:
    """A page of the documentation."""
    built = folder / "site"
    if not built.exists():
        subprocess.run([sys.executable, "-m", "sphinx", "--quiet", str(ROOT / "docs"), str(built)], check=True)
    return built / page


def notebook(folder: Path) -> Path:
    """A cell that shows scores; needs nbconvert and ipykernel."""
    lines = [
        "import torch, counterpoise",
        "torch.manual_seed(0)",
        "logits = 2 * torch.randn(2000, 5)",
        "labels = torch.multinomial(torch.softmax(0.6 * logits, -1), 1).squeeze(-1)",
        "counterpoise.evaluate(logits=logits, labels=labels)",
    ]
    cell: dict[str, object] = {
        "cell_type": "code",
        "id": "scores",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    document = {"cells": [cell | {"source": "\n".join(lines)}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    source = folder / "scores.ipynb"
    source.write_text(json.dumps(document))
    subprocess.run([sys.executable, "-m", "nbconvert", "--to", "html", "--execute", str(source)], check=True)
    return source.with_suffix(".html")


TERMINALS = (60, 80, 120)
SITE = {"site": "index.html", "site-quickstart": "quickstart.html", "site-reference": "reference/objectives.html"}
_PIXELS_A_COLUMN = 10

SHOTS = (
    Shot("report-light", comparison_report, WIDE, "light", kept=1280),
    Shot("report-dark", comparison_report, WIDE, "dark", kept=1280),
    Shot("report-phone", comparison_report, NARROW, "light", kept=1400),
    Shot("report-phone-dark", comparison_report, NARROW, "dark"),
    Shot("report-pdf", comparison_report, WIDE, "pdf"),
    Shot("report-single", single_report, WIDE, "light"),
    Shot("report-single-dark", single_report, WIDE, "dark"),
    Shot("report-single-phone", single_report, NARROW, "light"),
    *(
        Shot(f"terminal-{columns}", partial(terminal, columns=columns), _PIXELS_A_COLUMN * columns, "light")
        for columns in TERMINALS
    ),
    *(Shot(name, partial(site, page=page), WIDE, "light") for name, page in SITE.items()),
    Shot("notebook", notebook, WIDE, "light"),
)


def main() -> None:
    """Make the pages and their pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in SHOTS], default=None)
    parser.add_argument("--keep", action="store_true", help="write those of the documentation to docs/_static")
    parser.add_argument("--chromium", default="chromium")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    made = cache(lambda source: source(out))
    too_wide = []
    for each in SHOTS:
        if options.only is not None and each.name not in options.only:
            continue
        page = made(each.source)
        if each.scheme == "pdf":
            print_to_pdf(options.chromium, page, out / f"{each.name}.pdf")
            continue
        width, height = content_size(options.chromium, page, width=each.width)
        if width > each.width:
            too_wide.append(f"{each.name} takes {width} px in a window of {each.width} px")
        target = out / f"{each.name}.png"
        shot(options.chromium, page, target, width=each.width, height=height, theme=each.scheme)
        if options.keep and each.kept is not None:
            with Image.open(target) as image:
                image.crop((0, 0, each.width, each.kept)).save(STATIC / target.name, optimize=True)
    sys.exit("\n".join(too_wide) or 0)


def content_size(chromium: str, page: Path, *, width: int) -> tuple[int, int]:
    """Pixels that the page takes in a window of that width, asked from a page around it: it runs no script itself."""
    frame = f"""<iframe src="{page.resolve().as_uri()}" width="{width}" height="800" style="border:0"></iframe>
<script>
onload = () => {{ const e = frames[0].document.documentElement; document.title = e.scrollWidth + "x" + e.scrollHeight }}
</script>"""
    with tempfile.TemporaryDirectory() as folder:
        around = Path(folder) / "frame.html"
        around.write_text(frame)
        arguments = [f"--user-data-dir={folder}", "--allow-file-access-from-files", "--dump-dom", around.as_uri()]
        printed = subprocess.run([chromium, *QUIET, *arguments], check=True, capture_output=True, text=True).stdout
    found = re.search(r"<title>(\d+)x(\d+)</title>", printed)
    if found is None:
        raise RuntimeError("the browser did not tell the size of the page")
    return int(found[1]), int(found[2])


def content_width(chromium: str, page: Path, *, width: int) -> int:
    """Pixels across that the page takes in a window of that width."""
    return content_size(chromium, page, width=width)[0]


def shot(chromium: str, page: Path, target: Path, *, width: int, height: int, theme: str) -> None:
    """A picture of the top `height` pixels of the page, with few enough colours to be kept in a repository."""
    progress(target.name)
    with tempfile.TemporaryDirectory() as profile:
        arguments = [
            f"--user-data-dir={profile}",
            f"--blink-settings=preferredColorScheme={THEMES[theme]}",
            f"--window-size={width},{height}",
            f"--screenshot={target}",
            page.resolve().as_uri(),
        ]
        subprocess.run([chromium, *QUIET, *arguments], check=True, capture_output=True)
    with Image.open(target) as image:
        with_few_colours(image.convert("RGB")).save(target, optimize=True)


def with_few_colours(image: Image.Image) -> Image.Image:
    """Every colour as the nearest of the 256 that take most of the image, so that surfaces keep theirs."""
    pixels = np.asarray(image)
    colours, place, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    kept = colours[np.argsort(-counts, kind="stable")[:256]]
    distance = (colours[:, None].astype(np.int32) - kept) ** 2
    nearest = distance.sum(-1).argmin(-1).astype(np.uint8)
    found = Image.fromarray(nearest[place].reshape(pixels.shape[:2]))
    found.putpalette(kept.tobytes())
    return found


def print_to_pdf(chromium: str, page: Path, target: Path) -> None:
    """The page as it prints."""
    progress(target.name)
    with tempfile.TemporaryDirectory() as profile:
        arguments = [f"--user-data-dir={profile}", "--no-pdf-header-footer", f"--print-to-pdf={target}"]
        subprocess.run([chromium, *QUIET, *arguments, page.resolve().as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
