"""Checks: docs/mqadmin.md says of each command what the tests with upstream's tool hold."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTEROP = ROOT / "tests" / "interop"
COMMANDS = 89
"""Sub-commands of 5.3.3."""


def rows() -> dict[str, str]:
    page = (ROOT / "docs" / "mqadmin.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", page, re.M))


def blocks() -> dict[str, list[str]]:
    """The commands of the file of outcomes, each with whether ours differs and how."""
    found: dict[str, list[str]] = {}
    for block in (INTEROP / "mqadmin-outcomes.txt").read_text(encoding="utf-8").split("$ ")[1:]:
        command, *lines = block.strip().splitlines()
        found.setdefault(command.split()[0], []).append(lines[-1])
    return found


def test_every_command_has_a_row() -> None:
    assert len(rows()) == COMMANDS


def test_same_output_is_in_the_transcript() -> None:
    transcript = (INTEROP / "mqadmin-5.3.3.txt").read_text(encoding="utf-8")
    assert {name for name, answer in rows().items() if answer == "same output"} == set(
        re.findall(r"^\$ mqadmin (\w+)", transcript, re.M)
    )


def test_others_are_in_the_file_of_outcomes() -> None:
    others = {name: answer for name, answer in rows().items() if answer not in ("same output", "not compared")}
    assert others.keys() == blocks().keys() - {name for name, answer in rows().items() if answer == "same output"}
    # A static topic is moved by requests that need it made: the tool itself gives up.
    refused = {
        name
        for name, lines in blocks().items()
        if any(" not supported" in line or "command failed" in line for line in lines)
    }
    assert {name for name, answer in others.items() if answer == "refused"} == refused
