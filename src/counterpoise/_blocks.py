"""How much is read or measured at a time."""

_BLOCK_BYTES = 1 << 23
"""Values in memory at a time: enough to hide the cost of a call, few enough that some such blocks are little."""
_ENOUGH_ROWS = 256
_LARGEST_BLOCK_BYTES = 1 << 30


def rows_at_a_time(row_bytes: int) -> int:
    """Rows that are read or measured together, of `row_bytes` each.

    The sums of every class are as large as a row of many classes: with fewer than some hundred rows at a time, adding
    them up takes longer than counting.

    >>> rows_at_a_time(40), rows_at_a_time(4_000_000)
    (209715, 256)
    """
    return max(1, _BLOCK_BYTES // max(1, row_bytes), min(_ENOUGH_ROWS, _LARGEST_BLOCK_BYTES // max(1, row_bytes)))
