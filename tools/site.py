"""The documentation site in a browser: `python -m tools.site SITE --out FOLDER [--chromium chromium]`.

SITE is what `sphinx-build docs SITE` built. Opens every page in headless Chromium on a desk and on a phone, fails where
one is wider than its window, and writes a picture of each to FOLDER, to be looked at.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.reporting import progress
from tools.screenshots import NARROW, WIDE, content_width, shot

HEIGHTS = {WIDE: 2400, NARROW: 4000}
GENERATED = ("genindex", "py-modindex", "search")


def main() -> None:
    """Measure and picture every page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chromium", default="chromium")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    pages = [page for page in sorted(options.site.glob("*.html")) if page.stem not in GENERATED]
    too_wide = []
    for page in pages:
        for width, height in HEIGHTS.items():
            taken = content_width(options.chromium, page, width=width)
            if taken > width:
                too_wide.append(f"{page.name} takes {taken} px in a window of {width} px")
            target = options.out / f"{page.stem}-{width}.png"
            shot(options.chromium, page, target, width=width, height=height, theme="light")
    progress(f"{len(pages)} pages, {len(too_wide)} of them too wide")
    sys.exit("\n".join(too_wide) or 0)


if __name__ == "__main__":
    main()
