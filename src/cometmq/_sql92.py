"""Texts about SQL92 expressions that compile and do not say what their author meant.

Threads: any; nothing is kept.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["ignored_tail"]

_LIKE: Final = re.compile(r"I?LIKE\b", re.IGNORECASE)


def ignored_tail(expression: str, tail: str) -> str:
    """Return the warning about the text behind an expression's condition, which upstream's parser ignores.

    Args:
        expression: the whole text.
        tail: its end, as ``Selector.tail`` has it; not empty.
    """
    place = len(expression.encode()) - len(tail.encode())
    remedy = "; write CONTAINS, STARTSWITH or ENDSWITH in place of LIKE" if _LIKE.match(tail) else ""
    return f"SQL92 expression, byte {place}: the condition ends before {tail!r:.60}{remedy}"
