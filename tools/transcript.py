"""Follows pages to the letter: `python tools/transcript.py PAGE ... [--limit SECONDS=SECTION]`.

Runs the `python` and `bash` blocks of each page from top to bottom, as a reader would: in one folder that is empty at
first, the Python of a page in one interpreter, commands with this interpreter's programs. A block is left out only
where the line before it is `<!-- not run: REASON -->`. Needs nothing but the standard library, so that it also runs
where nothing is installed but the package.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

WORDS_PER_MINUTE = 200
"""At which technical prose is read, on the slow side."""

_PARTS = re.compile(
    r"^<!-- setup:[^\n]*\n(?P<setup>.*?)-->$"
    r"|^(?:<!-- not run: (?P<reason>[^\n]*?) -->\n+)?```(?P<language>python|bash)\n(?P<code>.*?)^```$"
    r"|^#+ (?P<heading>[^\n]+)$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Attributes:
        language: python or bash.
        code: what is between the fences.
        line: of the page, from 1, where the code begins.
        section: the heading above it.
        reason: why it is not run; empty if it is.
    """

    language: str
    code: str
    line: int
    section: str
    reason: str = ""


def blocks_of(text: str) -> Iterator[Block]:
    r"""The blocks of a page, in order; names that a page takes for granted are a block of their own.

    >>> [block] = blocks_of("# Title\n\n```bash\necho 1\n```\n")
    >>> block.code, block.line, block.section
    ('echo 1\n', 4, 'Title')
    """
    section = ""
    for part in _PARTS.finditer(text):
        if part["heading"] is not None:
            section = part["heading"]
            continue
        group = "setup" if part["setup"] is not None else "code"
        line = text.count("\n", 0, part.start(group)) + 1
        yield Block(part["language"] or "python", part[group], line, section, part["reason"] or "")


def follow(page: Path, *, programs: Path | None = None, instead: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run the blocks of a page in the current folder; seconds by section.

    Args:
        page: with the blocks.
        programs: folder whose programs come before those beside this interpreter.
        instead: passages of the page, which must be there, and what is run instead.
    """
    text = page.read_text(encoding="utf-8")
    for passage, other in (instead or {}).items():
        if passage not in text:
            raise ValueError(f"{page.name} no longer has {passage!r}")
        text = text.replace(passage, other)
    seconds: defaultdict[str, float] = defaultdict(float)
    names: dict[str, object] = {"__name__": "__main__", "__file__": str(page)}
    for block in blocks_of(text):
        if block.reason:
            continue
        started = time.perf_counter()
        if block.language == "python":
            # Line numbers in a traceback are those of the page.
            padded = "\n" * (block.line - 1) + block.code
            exec(compile(padded, str(page), "exec"), names)  # noqa: S102
        else:
            run_commands(block.code, where=f"{page.name}, line {block.line}", programs=programs)
        seconds[block.section] += time.perf_counter() - started
    return dict(seconds)


def run_commands(commands: str, *, where: str, programs: Path | None = None) -> None:
    """Run commands as a reader would in a shell, with the programs that are installed beside this interpreter."""
    folders = [*([str(programs)] if programs else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    outcome = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],  # noqa: S607
        env=os.environ | {"PATH": os.pathsep.join(folders)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode != 0:
        raise RuntimeError(f"{where}: exit code {outcome.returncode}\n{commands}\n{outcome.stdout}{outcome.stderr}")
    print(outcome.stdout)


def words_of(text: str, section: str) -> int:
    """Words of a section, as far as the next heading; code counts as well."""
    body = re.split(rf"^#+ {re.escape(section)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    return len(re.split(r"^#+ ", body, maxsplit=1, flags=re.MULTILINE)[0].split())


def main() -> None:
    """Follow every page, and compare the time of sections with their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--limit", default=[], nargs="*", help="SECONDS=SECTION: the longest that a section may take")
    options = parser.parse_args()
    limits = {section: float(seconds) for seconds, section in (limit.split("=", 1) for limit in options.limit)}
    too_slow = []
    for page in (page.resolve() for page in options.pages):
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            taken = follow(page)
        for section, seconds in taken.items():
            words = words_of(page.read_text(encoding="utf-8"), section)
            reading = f"{words} words, {words / WORDS_PER_MINUTE:.1f} min to read"
            print(f"{page.name}, {section}: {seconds:.1f} s to run, {reading}", file=sys.stderr)
            if seconds > limits.pop(section, float("inf")):
                too_slow.append(section)
    if too_slow or limits:
        sys.exit(f"over the limit: {too_slow}; not found: {list(limits)}")


if __name__ == "__main__":
    main()
