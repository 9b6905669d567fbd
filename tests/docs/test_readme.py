"""Checks: every Python block of the pages says whether it runs, and those that run do; links lead somewhere.

A block is opened by one of::

    ```python run                        executed in an empty directory; an error fails the test
    ```python run needs=cometmq.open     the same, but skipped, saying so, while that name does not exist
    ```python no-run: reason             shown only
    ```sh run                            executed by sh in an empty directory, with this environment's commands; needs=
                                         as above

Other shell blocks are shown only.

The blocks of a page that teaches also run one after another in one directory, as a reader runs them.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "PROMISES.md"])
BLOCK = re.compile(r"^```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL_BLOCK = re.compile(r"^```sh run(?: needs=(?P<needs>[\w.]+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r" run(?: needs=(?P<needs>[\w.]+))?")
SHOWN = re.compile(r" no-run: \S.*")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


class Block(NamedTuple):
    where: str
    mark: str
    code: str


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(f"{page.relative_to(ROOT)}:{line}", match["mark"], match["code"]))
    return found


def shell_blocks() -> list[tuple[str, str, str | None]]:
    return [
        (f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}", match["code"], match["needs"])
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in SHELL_BLOCK.finditer(text)
    ]


def exists(dotted: str) -> bool:
    module, _, name = dotted.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:  # it is there, and something in it is missing
            raise
        return False


def run_program(block: Block, directory: Path) -> None:
    program = directory / "example.py"
    program.write_text(block.code, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(program)], cwd=directory, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{block.where}\n{ended.stdout}{ended.stderr}"


def test_the_readme_has_an_example() -> None:
    assert any(block.where.startswith("README.md") and RUN.fullmatch(block.mark) for block in blocks())


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.where)
def test_block(block: Block, tmp_path: Path) -> None:
    if SHOWN.fullmatch(block.mark):
        return
    run = RUN.fullmatch(block.mark)
    assert run is not None, f"{block.where}: mark the block 'run' or 'no-run: reason', not {block.mark!r}"
    if run["needs"] and not exists(run["needs"]):
        pytest.skip(f"{block.where}: {run['needs']} is not there yet")
    run_program(block, tmp_path)


@pytest.mark.parametrize("page", ["README.md", "docs/arrow.md", "docs/embed.md"])
def test_blocks_one_after_another_in_one_directory(page: str, tmp_path: Path) -> None:
    for block in blocks():
        run = RUN.fullmatch(block.mark)
        if block.where.startswith(f"{page}:") and run is not None and (not run["needs"] or exists(run["needs"])):
            run_program(block, tmp_path)


@pytest.mark.parametrize(("where", "code", "needs"), shell_blocks(), ids=[where for where, *_ in shell_blocks()])
def test_shell_block(where: str, code: str, needs: str | None, tmp_path: Path) -> None:
    if needs is not None and not exists(needs):
        pytest.skip(f"{where}: {needs} is not there yet")
    commands = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(
        ["sh", "-e", "-c", code], cwd=tmp_path, env=commands, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{where}\n{ended.stdout}{ended.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not broken
