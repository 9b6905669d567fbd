"""Checks of the site that need no MkDocs: every page has its place, and everything in the API reference a docstring.

``make docs`` builds the site itself, strictly; it takes too long for every run of the tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import site_hooks

ROOT = Path(__file__).resolve().parents[2]
NAVIGATION = re.findall(r"^\s*- ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_page_has_a_place() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    decisions = {page for page in pages if re.match(r"decisions/\d", page)}
    made = {f"api/{page}.md" for page in site_hooks.API} | {"changelog.md"}
    assert sorted(NAVIGATION) == sorted((pages - decisions) | made)


def test_everything_in_the_reference_has_a_docstring() -> None:
    assert site_hooks.undocumented() == []


def test_all_public_names_of_the_store_are_in_the_reference() -> None:
    import cometmq

    shown = {name for page in ("store", "messages", "errors") for name in site_hooks.names_of(page)}
    assert sorted(set(cometmq.__all__) - shown) == ["Status", "__version__"]


class _Page:
    class file:
        src_uri = "decisions/0001.md"


def test_links_out_of_docs_become_names_and_marks_of_blocks_go() -> None:
    text = "[all](../../CONTRIBUTING.md#testing), [install.md](../install.md)\n```sh run\nls\n```"
    assert site_hooks.on_page_markdown(text, _Page) == "all, [install](../install.md)\n```sh\nls\n```"


def test_the_command_line_page_has_every_command_and_no_synopsis() -> None:
    import typer.main

    from cometmq.cli import app

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert sorted(re.findall(r"^## ([a-z]+)$", page, flags=re.MULTILINE)) == sorted(commands)
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^    cometmq .*$", prose, flags=re.MULTILINE) == [], "--help has the synopsis"
