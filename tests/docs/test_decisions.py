"""Checks: docs/decisions/README.md lists every decision, with its title."""

from __future__ import annotations

import re
from pathlib import Path

DECISIONS = Path(__file__).resolve().parents[2] / "docs" / "decisions"
LINE = re.compile(r"^- \[(\d{4})\]\((\S+)\): (.+)$", re.MULTILINE)


def test_every_decision_is_listed() -> None:
    listed = LINE.findall((DECISIONS / "README.md").read_text("utf-8"))
    there = []
    for page in sorted(DECISIONS.glob("[0-9]*.md")):
        number, _, title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ").partition(": ")
        if number != "0000":
            there.append((number, page.name, title))
    assert listed == there
