"""The order in which Java's HashMap and HashSet give back their strings.

``groupTopicMap`` in ``consumerOffset.json`` is built in such tables, so its order follows from its content alone. With
the same order our file equals a broker's byte for byte. Nobody may rely on the order; a reader does not see it.

Not followed: a bucket of more than eight (in a table of 64 or more) is a tree in Java, whose root comes first.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["hash_map_order", "string_hash"]


def string_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` as an unsigned 32-bit number: over UTF-16 units, ``h = 31 * h + unit``."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


def hash_map_order(texts: Iterable[str], *, initial_capacity: int) -> list[str]:
    """Order strings, put in as given, as a HashMap or HashSet made with this capacity gives them back.

    Args:
        texts: the keys in the order of insertion; equal ones count once.
        initial_capacity: the constructor's argument; a power of two.
    """
    keys = list(dict.fromkeys(texts))
    capacity = initial_capacity
    # The table doubles when the size passes three quarters of it; growing keeps the order inside a bucket.
    while len(keys) > capacity * 3 // 4:
        capacity *= 2

    def bucket(key: str) -> int:
        value = string_hash(key)
        return (value ^ value >> 16) & (capacity - 1)

    return sorted(keys, key=bucket)
