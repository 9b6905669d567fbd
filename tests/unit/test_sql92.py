"""Checks: the text about an SQL92 expression's ignored end has its place in bytes and the remedy."""

from __future__ import annotations

import pytest

from cometmq._engine import Selector
from cometmq._sql92 import ignored_tail

LIKE = "; write CONTAINS, STARTSWITH or ENDSWITH in place of LIKE"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a = 1 b", "byte 6: the condition ends before 'b'"),
        ("a = 'é' b", "byte 9: the condition ends before 'b'"),
        ("a LIKE 'x%'", f"byte 2: the condition ends before \"LIKE 'x%'\"{LIKE}"),
        ("a LIKELY", "byte 2: the condition ends before 'LIKELY'"),
    ],
)
def test_ignored_ends_are_named(expression: str, text: str) -> None:
    tail = Selector(expression).tail
    assert ignored_tail(expression, tail) == f"SQL92 expression, {text}"
