"""Checks: an isolated build asks for PySpark where it can build the engine for Spark's JVM and has none."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BINDINGS = Path(__file__).resolve().parents[2] / "bindings"
REQUIREMENT = "pyspark>=4.2"


def program(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The backend, where no JDK is found and the environment has no PySpark."""
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    monkeypatch.syspath_prepend(str(BINDINGS))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(sys, "executable", str(program(tmp_path, "python", "exit 1")))
    return importlib.import_module("build_backend")


@pytest.mark.parametrize(("version", "asked"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0", False)])
def test_a_jdk_that_is_new_enough_asks_for_pyspark(
    backend: ModuleType, tmp_path: Path, version: str, asked: bool
) -> None:
    program(tmp_path, "javac", f"echo Picked up JAVA_TOOL_OPTIONS: -Xmx1g >&2; echo javac {version} >&2")
    for hook in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable):
        assert (REQUIREMENT in hook()) is asked
        assert REQUIREMENT not in hook({"cmake.define.CMQ_JVM": "OFF"})


def test_java_home_is_looked_at_first(backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    program(home / "bin", "javac", "echo javac 21.0.1")
    program(tmp_path, "javac", "echo javac 11")
    assert REQUIREMENT not in backend.get_requires_for_build_wheel()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert REQUIREMENT in backend.get_requires_for_build_wheel()


def test_without_a_jdk_or_beside_pyspark_nothing_is_asked_for(backend: ModuleType, tmp_path: Path) -> None:
    assert REQUIREMENT not in backend.get_requires_for_build_wheel()
    program(tmp_path, "javac", "echo javac 17")
    program(tmp_path, "python", "exit 0")
    assert REQUIREMENT not in backend.get_requires_for_build_wheel()
