"""C programs that Python tests run; ``make test`` builds them before it starts pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["built_program"]

_FOLDER = Path(__file__).resolve().parents[2] / "build" / "release" / "tests"


def built_program(name: str) -> Path:
    """Return the program's path; skip the test that asks where it was not built."""
    program = _FOLDER / name
    if not program.exists():
        pytest.skip(f"build/release/tests/{name} is missing: make golden-programs builds it")
    return program
