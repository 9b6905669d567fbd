"""Checks: one of a thing is never "1 things", in what the engine says either."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq._plural import counted, verb

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (2000, "message", "2,000 messages"),
        (1, "index entry", "1 index entry"),
        (3, "index entry", "3 index entries"),
        (2, "key", "2 keys"),
    ],
)
def test_counted(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_verb() -> None:
    assert [verb(count) for count in (0, 1, 2)] == ["are", "is", "are"]
    assert [verb(count, "has", "have") for count in (1, 2)] == ["has", "have"]
