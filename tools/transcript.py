"""Follows pages to the letter: `python tools/transcript.py PAGE ... [--limit SECONDS=SECTION] [--write]`.

Runs the `python` and `bash` blocks of each page from top to bottom, as a reader would: in one folder that is empty at
first, the Python of a page in one interpreter, commands with this interpreter's programs. A block is left out only
where the line before it is `<!-- not run: REASON -->`. Where `<!-- output -->` and a `text` block follow, that is what
it must print, up to the last digits; `<!-- output: varies -->` is for what another machine may print otherwise.
`--write` brings both up to date. Needs nothing but the standard library, so that it also runs where nothing is
installed but the package.
"""

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

WORDS_PER_MINUTE = 240
"""At which prose is read; code counts as well."""
COLUMNS = 96
"""Of the terminal: as wide a block as the site shows without a scroll bar in a window of 1280 px."""

_PARTS = re.compile(
    r"^<!-- setup:[^\n]*\n(?P<setup>.*?)-->$"
    r"|^(?:<!-- not run: (?P<reason>[^\n]*?) -->\n+)?```(?P<language>python|bash)\n(?P<code>.*?)^```$"
    r"(?:\n+<!-- output(?P<varies>: varies)? -->\n+```text\n(?P<shown>.*?)^```$)?"
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
        shown: what the page says that it prints; None where it says nothing.
        span: where `shown` is in the page.
        varies: whether another machine may print something else.
    """

    language: str
    code: str
    line: int
    section: str
    reason: str = ""
    shown: str | None = None
    span: tuple[int, int] = (0, 0)
    varies: bool = False


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
        yield Block(
            part["language"] or "python",
            part[group],
            line,
            section,
            reason=part["reason"] or "",
            shown=part["shown"],
            span=part.span("shown"),
            varies=part["varies"] is not None,
        )


def follow(
    page: Path, *, write: bool = False, programs: Path | None = None, instead: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Run the blocks of a page here, and compare or write what they print; processor time by section.

    Args:
        page: with the blocks.
        write: put what is printed into the page.
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
    outputs: list[tuple[Block, str]] = []
    for block in blocks_of(text):
        if block.reason:
            continue
        started, where = processor_seconds(), f"{page.name}, line {block.line}"
        if block.language == "python":
            # Line numbers in a traceback are those of the page.
            padded = "\n" * (block.line - 1) + block.code
            with redirect_stdout(io.StringIO()) as stdout:
                exec(compile(padded, str(page), "exec"), names)  # noqa: S102
            printed = stdout.getvalue()
        else:
            printed = run_commands(block.code, where=where, programs=programs)
        seconds[block.section] += processor_seconds() - started
        print(printed)
        if block.shown is not None:
            outputs.append((block, printed))
            if not (write or block.varies or is_same(block.shown, printed)):
                raise RuntimeError(
                    f"{where}: prints what the page does not show; `python tools/transcript.py --write {page.name}` "
                    f"brings it up to date\n{printed}"
                )
    if write:
        for block, printed in reversed(outputs):
            start, end = block.span
            text = f"{text[:start]}{printed.strip(chr(10))}\n{text[end:]}"
        page.write_text(text, encoding="utf-8")
    return dict(seconds)


def processor_seconds() -> float:
    """Of this process and of those that it has waited for: a machine that is busy otherwise makes no section slow."""
    return sum(os.times()[:4])


def is_same(shown: str, printed: str) -> bool:
    """Whether two outputs are the same, up to spaces and two units of the last decimal of each number.

    >>> is_same("ECE 1.23 (15 bins)", "ECE 1.24 (15 bins)"), is_same("15 bins", "16 bins"), is_same("1.2 to", "1.2")
    (True, False, False)
    """
    number = re.compile(r"\d+\.(\d+)")
    one, other = ("\n".join(" ".join(line.split()) for line in text.strip().splitlines()) for text in (shown, printed))
    if number.sub("", one) != number.sub("", other):
        return False
    pairs = zip(number.finditer(one), number.finditer(other), strict=True)
    return all(abs(float(a[0]) - float(b[0])) < 2.5 * 10 ** -max(len(a[1]), len(b[1])) for a, b in pairs)


def run_commands(commands: str, *, where: str, programs: Path | None = None) -> str:
    """What commands print, as a reader would run them: with the programs that are installed beside this interpreter."""
    folders = [*([str(programs)] if programs else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    outcome = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],  # noqa: S607
        env=os.environ | {"PATH": os.pathsep.join(folders), "COLUMNS": str(COLUMNS)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode != 0:
        raise RuntimeError(f"{where}: exit code {outcome.returncode}\n{commands}\n{outcome.stdout}{outcome.stderr}")
    return outcome.stdout


def words_of(text: str, section: str) -> int:
    """Words of a section, as far as the next heading; code counts as well."""
    body = re.split(rf"^#+ {re.escape(section)}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    return len(re.split(r"^#+ ", body, maxsplit=1, flags=re.MULTILINE)[0].split())


def main() -> None:
    """Follow every page, and compare the processor time of sections with their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument(
        "--limit", default=[], nargs="*", help="SECONDS=SECTION: the most processor time that a section may take"
    )
    parser.add_argument("--write", action="store_true", help="bring the outputs that the pages show up to date")
    options = parser.parse_args()
    limits = {section: float(seconds) for seconds, section in (limit.split("=", 1) for limit in options.limit)}
    too_slow = []
    for page in (page.resolve() for page in options.pages):
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            taken = follow(page, write=options.write)
        for section, seconds in taken.items():
            words = words_of(page.read_text(encoding="utf-8"), section)
            reading = f"{words} words, {words / WORDS_PER_MINUTE:.1f} min to read"
            print(f"{page.name}, {section}: {seconds:.1f} s of processor time, {reading}", file=sys.stderr)
            if seconds > limits.pop(section, float("inf")):
                too_slow.append(section)
    if too_slow or limits:
        sys.exit(f"over the limit: {too_slow}; not found: {list(limits)}")


if __name__ == "__main__":
    main()
