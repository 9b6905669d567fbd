"""Checks: how the rooms of the tree may depend on each other."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_headers_include_each_other_in_no_circle() -> None:
    csrc = ROOT / "csrc"
    headers = {path.relative_to(csrc).as_posix(): path.read_text() for path in csrc.rglob("*.h")}
    graph = {name: set(re.findall(r'#include "([^"]+)"', text)) for name, text in headers.items()}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(headers) > 100  # a circle raises CycleError


def test_arrow_imports_nothing_of_the_store() -> None:
    """``store.scan`` is built on ``cometmq.arrow``, so that must not need the store, annotations included."""
    found = [
        f"{path.name}: {module}"
        for path in (ROOT / "src/cometmq/arrow").glob("*.py")
        for module in imported(path.read_text())
        if module == "cometmq.store" or module.startswith("cometmq.store.")
    ]
    assert found == []


def imported(source: str) -> list[str]:
    """Return the modules that a source imports, wherever in it."""
    modules = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            modules += [node.module or "", *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
    return modules
