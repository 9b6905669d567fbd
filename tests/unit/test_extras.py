"""Checks: errors that ask for a library name a command that works beside a checkout, with what the extra brings."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from cometmq import MissingLibrary
from cometmq._extras import EXTRAS, install_command
from cometmq.arrow.libraries import library

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_extras_are_those_of_pyproject(extra: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r'"([^"]+)"', listed[1])) == EXTRAS[extra]
    assert shlex.split(install_command(extra)) == ["pip", "install", *EXTRAS[extra]]


@pytest.mark.parametrize(
    ("name", "command"), [("duckdb", "pip install 'duckdb>=2.0' pytz"), ("x_y_z", "pip install x_y_z")]
)
def test_missing_library_names_its_command(name: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibrary, match=re.escape(command)):
        library(name)


def test_no_text_asks_for_an_index_that_does_not_have_the_package() -> None:
    """There is no release on a package index: ``pip install cometmq`` would fetch something else, or nothing."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    command = re.compile(r"pip install (-\S+ )*['\"]?cometmq\b")
    assert [file for file in files if command.search(file.read_text(encoding="utf-8"))] == []
