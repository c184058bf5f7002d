"""Names from anywhere, made fit to be shown."""

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

# Control characters, line ends, bidirectional overrides (they would turn the text around them), halves of characters
# (file names may hold them; no encoding does).
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def readable(text: str) -> str:
    """Text that shows all it holds and changes nothing around it: spaces for line ends, boxes for control characters.

    >>> readable(chr(27) + "[31m red") == chr(0xFFFD) + "[31m red"
    True
    """
    return _UNREADABLE.sub(lambda found: " " if found[0].isspace() else "\ufffd", text)


def printable(text: str) -> str:
    """One line for a terminal, a file or a figure: spaces for all that has no width of its own."""
    return "".join(character if character.isprintable() else " " for character in text)


def width_of(text: str) -> int:
    """Columns that a terminal takes for printable text.

    >>> width_of("cat"), width_of("猫")
    (3, 2)
    """
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def wrapped(text: str, width: int) -> str:
    """Printable lines of at most so many columns."""
    line = printable(text)
    return textwrap.fill(line, max(width // 2, width - (width_of(line) - len(line))))


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them.

    >>> listed(["ce", "dml", "mte"]), listed(["ce"])
    ('ce, dml and mte', 'ce')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def some(names: Sequence[str], *, most: int = 8) -> str:
    """The first names, and how many more there are.

    >>> some(["cat", "dog", "ship"], most=2)
    "'cat', 'dog' and 1 more"
    """
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def shown(text: str, *, most: int = 24) -> str:
    """A name as a figure can show it: printable, and cut in the middle, because names differ at either end.

    >>> shown("a name that is far too long for the axis")
    'a name that …or the axis'
    """
    line = printable(text)
    if width_of(line) <= most:
        return line
    end = _start_of(reversed(line), (most - 1) // 2)
    return f"{_start_of(line, most // 2)}…{end[::-1]}"


def _start_of(characters: Iterable[str], most: int) -> str:
    taken = ""
    for character in characters:
        if width_of(taken + character) > most:
            break
        taken += character
    return taken
