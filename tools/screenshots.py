"""The report in a browser: `python -m tools.screenshots FOLDER [--chromium chromium]`.

FOLDER holds what `python -m tools.demonstration` wrote. Makes the report of both networks with
`counterpoise evaluate --html`, opens it in headless Chromium, and writes to `docs/_static/` the top of the page: in
light and dark at 1280 px, and on a phone of 390 px. Beside the report, in FOLDER, go pictures of the whole page and a
print to PDF, to be looked at. Fails where the page is wider than its window.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.reporting import progress
from tools.demonstration import METHODS

STATIC = Path(__file__).parent.parent / "docs" / "_static"
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


def main() -> None:
    """Make the report and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chromium", default="chromium")
    options = parser.parse_args()
    folder: Path = options.folder
    report = folder / "report.html"
    models = [f"{method}.parquet" for method in METHODS]
    ood = [f"{method}/predictions/ood_svhn_partial.parquet" for method in METHODS]
    command = [sys.executable, "-m", "counterpoise.cli", "evaluate", *models, "--ood", *ood, "--html", report.name]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for width in (WIDE, NARROW):
        taken = content_width(options.chromium, report, width=width)
        if taken > width:
            sys.exit(f"the page takes {taken} px in a window of {width} px")
    for theme in THEMES:
        shot(options.chromium, report, STATIC / f"report-{theme}.png", width=WIDE, height=1380, theme=theme)
        for width, height in ((WIDE, 6500), (NARROW, 13000)):
            target = folder / f"report-{width}-{theme}.png"
            shot(options.chromium, report, target, width=width, height=height, theme=theme)
    shot(options.chromium, report, STATIC / "report-phone.png", width=NARROW, height=1400, theme="light")
    progress("printing")
    with tempfile.TemporaryDirectory() as profile:
        target = folder / "report.pdf"
        arguments = [
            f"--user-data-dir={profile}",
            "--no-pdf-header-footer",
            f"--print-to-pdf={target}",
            report.as_uri(),
        ]
        subprocess.run([options.chromium, *QUIET, *arguments], check=True, capture_output=True)


def content_width(chromium: str, page: Path, *, width: int) -> int:
    """Pixels that the page takes in a window of that width, asked from a page around it: it runs no script itself."""
    frame = f"""<iframe src="{page.resolve().as_uri()}" width="{width}" height="800" style="border:0"></iframe>
<script>onload = () => document.title = frames[0].document.documentElement.scrollWidth</script>"""
    with tempfile.TemporaryDirectory() as folder:
        around = Path(folder) / "frame.html"
        around.write_text(frame)
        arguments = [f"--user-data-dir={folder}", "--allow-file-access-from-files", "--dump-dom", around.as_uri()]
        printed = subprocess.run([chromium, *QUIET, *arguments], check=True, capture_output=True, text=True).stdout
    found = re.search(r"<title>(\d+)</title>", printed)
    if found is None:
        raise RuntimeError("the browser did not tell the width of the page")
    return int(found[1])


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
        image.convert("RGB").quantize(128).save(target, optimize=True)


if __name__ == "__main__":
    main()
