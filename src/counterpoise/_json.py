"""JSON of other people's files, whose nesting is bounded before any parser descends into it."""

import json
from typing import Any, Final

MOST_NESTED: Final = 64
"""Levels of brackets. Arrow's parser ends the process at some ten thousand, and takes time by their square before."""

_BRACKETS: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_OTHERS: Final = bytes({*range(256)}.difference(b'[]{}"\n'))


class Nesting:
    """How deep brackets nest in JSON that comes piece by piece; those in strings do not count."""

    def __init__(self) -> None:
        self._depth, self._line, self._in_string, self._escape = 0, 1, False, b""

    def check(self, data: bytes) -> None:
        """Reject the next piece if it nests deeper than `MOST_NESTED`; takes time in proportion to its length."""
        import numpy as np

        data = (self._escape + data).replace(rb"\\", b"").replace(rb"\"", b"")
        self._escape = b"\\" if data.endswith(b"\\") else b""
        found = np.frombuffer(data.translate(None, _OTHERS), np.uint8)
        if not len(found):
            return
        in_string = np.logical_xor.accumulate(found == ord('"')) ^ self._in_string
        steps = np.zeros(256, np.int8)
        for bracket, step in _BRACKETS.items():
            steps[ord(bracket)] = step
        depths = self._depth + np.cumsum(np.where(in_string, 0, steps[found]))
        deep = np.flatnonzero(depths > MOST_NESTED)
        if len(deep):
            line = self._line + np.count_nonzero(found[: deep[0]] == ord("\n"))
            raise ValueError(
                f"line {line} is nested deeper than {MOST_NESTED} levels; write each value below few names, such as "
                '{"label": 0, "logits": [0.5, -1.5]}'
            )
        self._depth, self._in_string = int(depths[-1]), bool(in_string[-1])
        self._line += int(np.count_nonzero(found == ord("\n")))


def parsed(data: str | bytes, **options: Any) -> Any:
    """The value of a JSON text, with the options of `json.loads`; a `ValueError` if it is none, or nested too deep."""
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
    if text.count("[") + text.count("{") > MOST_NESTED:
        Nesting().check(text.encode(errors="surrogatepass"))
    return json.loads(text, **options)
