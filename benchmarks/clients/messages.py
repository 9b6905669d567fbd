"""The messages of the client benchmark: numbered, so that what came back is checked without what was sent.

A body is 64-bit words, little-endian: its number, then one word that follows from it, over and over. The Java client's
program (``tests/interop/java``, class ``Bench``) makes and checks the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

WORD_BYTES = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE = 1 << 16


class WrongResult(Exception):
    """Messages were lost, came twice, came damaged or out of order; the text says which."""


def make_bodies(count: int, body_bytes: int) -> list[bytes]:
    """Return the bodies of messages ``0 .. count``."""
    bodies: list[bytes] = []
    for first in range(0, count, _AT_ONCE):
        numbers = np.arange(first, min(first + _AT_ONCE, count), dtype=np.uint64)
        words = np.repeat(_filler(numbers)[:, None], body_bytes // WORD_BYTES, axis=1)
        words[:, 0] = numbers
        data = words.astype("<u8").tobytes()
        bodies += [data[at : at + body_bytes] for at in range(0, len(data), body_bytes)]
    return bodies


def _filler(numbers: np.ndarray) -> np.ndarray:
    return numbers * _FACTOR + np.uint64(1)


def numbers_of(bodies: Sequence[bytes], body_bytes: int) -> np.ndarray:
    """Return the messages' numbers.

    Raises:
        WrongResult: a body is not one that was made for its number.
    """
    if not bodies:
        return np.empty(0, dtype=np.uint64)
    return np.concatenate(list(_numbers(bodies, body_bytes)))


def _numbers(bodies: Sequence[bytes], body_bytes: int) -> Iterator[np.ndarray]:
    for first in range(0, len(bodies), _AT_ONCE):
        some = bodies[first : first + _AT_ONCE]
        data = b"".join(some)
        if len(data) != len(some) * body_bytes:
            raise WrongResult(f"among messages {first} to {first + len(some)} is one that has not {body_bytes} bytes")
        words = np.frombuffer(data, "<u8").reshape(len(some), body_bytes // WORD_BYTES)
        numbers = words[:, 0].astype(np.uint64)
        if (words[:, 1:] != _filler(numbers)[:, None]).any():
            raise WrongResult(f"among messages {first} to {first + len(some)} is one with other bytes than were sent")
        yield numbers


def check_once_each(numbers: np.ndarray, count: int) -> None:
    """Check that messages ``0 .. count`` came, each once.

    Raises:
        WrongResult: some did not, or came twice.
    """
    distinct = np.unique(numbers)
    if len(distinct) != len(numbers):
        raise WrongResult(f"{len(numbers) - len(distinct)} of {len(numbers)} messages came twice")
    if len(distinct) != count or (count and int(distinct[-1]) != count - 1):
        raise WrongResult(f"{len(distinct)} messages came instead of {count}, the last being number {distinct[-1:]}")


def check_ascending(numbers: np.ndarray, where: object) -> None:
    """Check that messages came in the order in which they were sent.

    Raises:
        WrongResult: one came before an older one.
    """
    if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
        raise WrongResult(f"messages of {where} came out of order")
