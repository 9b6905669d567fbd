"""Numbers with their nouns, for every text that people read."""

from __future__ import annotations

__all__ = ["counted", "verb"]


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 message``, ``2,000 messages``, ``1 index entry``, ``2 index entries``."""
    plural = noun[:-1] + "ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def verb(count: int, singular: str = "is", plural: str = "are") -> str:
    """Return the verb that goes with a number: ``is`` or ``are``."""
    return singular if count == 1 else plural
