"""Checks: tests/PROMISES.md names all promises once, some in the words of their pages, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "tests" / "PROMISES.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)
PROMISES = 130
PAGES = re.findall(r"^\| ([ACPST]\d+) \| (.+?) \| (.+?) \|$", PAGE, flags=re.MULTILINE)
"""Promises of docs/arrow.md, client.md, pop.md and spark.md, and of transactions, filters, requests and traces."""


def test_each_promise_has_one_row() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, PROMISES + 1))


def test_rows_of_transactions_and_filters_are_numbered() -> None:
    rows = [number for number, _, _ in PAGES if number.startswith("T")]
    assert rows == [f"T{number}" for number in range(1, len(rows) + 1)]
    assert rows


@pytest.mark.parametrize(("letter", "page"), [("C", "client"), ("P", "pop")])
def test_promises_in_a_pages_words_are_in_it(letter: str, page: str) -> None:
    rows = {number: promise for number, promise, _ in PAGES if number.startswith(letter)}
    assert list(rows) == [f"{letter}{number}" for number in range(1, len(rows) + 1)]
    text = " ".join((ROOT / f"docs/{page}.md").read_text(encoding="utf-8").split())
    assert rows
    assert not [promise for promise in rows.values() if promise not in text], f"docs/{page}.md no longer says so"


@pytest.mark.parametrize(("number", "held_by"), [(number, held_by) for number, _, held_by in (*ROWS, *PAGES)])
def test_a_row_names_tests_that_exist_or_says_that_it_is_open(number: str, held_by: str) -> None:
    named = re.findall(r"`([\w/.]+)::(\w+)`", held_by)
    if not named:
        assert held_by.startswith("open: "), f"promise {number} names no test and does not say why"
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        definition = rf"CMQ_TEST\({test}\)" if path.endswith(".c") else rf"^\s*(?:async )?def {test}\("
        assert re.search(definition, text, flags=re.MULTILINE), f"promise {number}: {path} has no {test}"
