"""Markdown, as the documentation shows it."""

import re
from collections.abc import Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells, which are Markdown themselves, as a table of the documentation."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def section_of(text: str, name: str) -> str:
    r"""What is between the marks of that name.

    >>> section_of("<!-- figures: speed -->\n\nfast\n\n<!-- end -->", "speed")
    'fast'
    """
    return _section(text, name)[2].strip()


def replace_section(text: str, name: str, body: str) -> str:
    r"""Put `body` between the marks of that name.

    >>> section_of(replace_section("<!-- figures: speed -->\n<!-- end -->", "speed", "fast"), "speed")
    'fast'
    """
    found = _section(text, name)
    return f"{text[: found.start()]}{found[1]}\n{body}\n\n{found[3]}{text[found.end() :]}"


def _section(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- figures: {name} -->\n)(.*?)(<!-- end -->)", text, flags=re.DOTALL)
    if found is None:
        raise ValueError(f"no marks for the figures {name!r}")
    return found
