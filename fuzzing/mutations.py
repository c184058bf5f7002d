"""Ways to damage a file: bits, lengths, words of the formats, parts of another file, values of a JSON document."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

WORDS = (
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 40, b'""', b"{}", b"[]", b'"\\ud800"'),
    *(b"[" * 2000, b'{"a":' * 2000, b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\0", b"\r\n", b"\n\n", b'"', b"'"),
    *(b"../", b"/etc/passwd", b"..\\", b"=1+1", b"\x1b[31m", b"\xe2\x80\xae"),
    *(b"PAR1", b"ARROW1", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"PK\x01\x02", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08"),
    *(b"'descr': '|O'", b"'shape': (1000000000000,)", b"'shape': (-1,)", b"'fortran_order': True", b"ustar\x0000"),
    *(b"schema", b"schema_version", b"__metadata__", b"data_offsets", b"level = inf", b"require = ['ece<=nan']"),
)
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 63, 10**400, -(1 << 63), 0.5, 1e308, -1e308, 1e-320),
    *(
        "",
        "x",
        "nan",
        "inf",
        "1",
        "../..",
        "/",
        "\0",
        "\x1b[31m",
        "a" * 5000,
        "\ud800",
        [],
        {},
        [[]],
        [None],
        {"": None},
    ),
)

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, damaged once or a few times."""
    data = random.choice(seeds)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        data = random.choice(_MUTATIONS)(random, data, seeds)
    return data


def flipped(random: Random, data: bytes, _seeds: Sequence[bytes] = ()) -> bytes:
    """With one bit changed."""
    if not data:
        return data
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def truncated(random: Random, data: bytes, _seeds: Sequence[bytes] = ()) -> bytes:
    """Without its end."""
    return data[: random.randrange(len(data))] if data else data


def spliced(random: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """With a part of another one, or of itself, in place of a part."""
    other = random.choice(seeds)
    start, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    first, last = sorted((random.randrange(len(other) + 1), random.randrange(len(other) + 1)))
    return data[:start] + other[first:last] + data[end:]


def _removed(random: Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + data[start + random.choice((1, 4, 16, 200)) :]


def _repeated(random: Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    start = random.randrange(len(data) + 1)
    part = data[start : start + random.choice((1, 8, 64, 500))]
    return data[:start] + part * random.choice((2, 3, 100)) + data[start + len(part) :]


def _with_word(random: Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    word, start = random.choice(WORDS), random.randrange(len(data) + 1)
    return data[:start] + word + data[start + random.choice((0, 0, 1, len(word))) :]


def _with_number(random: Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    """A length or a count of a binary format."""
    size = random.choice((1, 2, 4, 8))
    number = (random.choice(NUMBERS) + random.choice((0, 0, -1, 1))) % (1 << 8 * size)
    start = random.choice((0, 4, 8, len(data) - 8, random.randrange(len(data) + 1)))
    return (
        data[: max(0, start)] + number.to_bytes(size, random.choice(("little", "big"))) + data[max(0, start) + size :]
    )


def _with_digits(random: Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    """Another number in a text."""
    places = [place for place in range(len(data)) if 48 <= data[place] < 58]
    if not places:
        return data
    place = random.choice(places)
    return data[:place] + random.choice((b"0", b"-", b"9" * 20, b"1e400", b".5", b"1_0", b"")) + data[place + 1 :]


def _with_value(random: Random, data: bytes, _seeds: Sequence[bytes]) -> bytes:
    """Another value, or none, somewhere in a JSON document, or in that of a line or a header of safetensors."""
    for begin, end in _documents(data):
        try:
            document = json.loads(data[begin:end])
        except (ValueError, RecursionError):
            continue
        changed = json.dumps(_replaced(random, document)).encode()
        if begin == 8 and int.from_bytes(data[:8], "little") == end - 8:
            return len(changed).to_bytes(8, "little") + changed + data[end:]
        return data[:begin] + changed + data[end:]
    return data


def _documents(data: bytes) -> list[tuple[int, int]]:
    length = int.from_bytes(data[:8], "little")
    line = data.find(b"\n") + 1
    return [(0, len(data)), (8, 8 + length), (0, line), (line, data.find(b"\n", line) + 1)]


def _replaced(random: Random, value: Any) -> Any:
    """The same tree with one part replaced, removed or renamed; deeper parts as likely as shallow ones."""
    if isinstance(value, str) and value.startswith("{") and random.random() < 0.8:
        try:  # a document inside a document
            return json.dumps(_replaced(random, json.loads(value)))
        except (ValueError, RecursionError):
            pass
    if not isinstance(value, dict | list) or not value or random.random() < 0.1:
        return random.choice(VALUES)
    if isinstance(value, list):
        place = random.randrange(len(value))
        return [_replaced(random, each) if index == place else each for index, each in enumerate(value)]
    key = random.choice(list(value))
    chance = random.random()
    if chance < 0.1:
        return {name: each for name, each in value.items() if name != key}
    if chance < 0.2:
        return {(random.choice(("", "x", "schema")) if name == key else name): each for name, each in value.items()}
    return value | {key: _replaced(random, value[key])}


_MUTATIONS: tuple[Mutation, ...] = (
    flipped,
    truncated,
    spliced,
    _removed,
    _repeated,
    _with_word,
    _with_number,
    _with_digits,
    _with_value,
    _with_value,
    _with_value,
)
