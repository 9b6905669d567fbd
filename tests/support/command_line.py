"""Shared by the tests of the command line: running commands in this process and as real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from cometmq.cli import app

__all__ = ["Outcome", "run", "run_json", "spawn", "start"]

_COMMAND = [sys.executable, "-m", "cometmq"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        return self.out.splitlines()


def run(*arguments: str | Path, input: bytes | str | None = None) -> Outcome:
    """Run a command in this process."""
    result = CliRunner().invoke(app, [os.fspath(argument) for argument in arguments], input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def run_json(*arguments: str | Path) -> Any:
    """Run a command that prints one JSON document, whatever its exit code."""
    return json.loads(run(*arguments).out)


def spawn(*arguments: str | Path, input: bytes = b"") -> Outcome:
    """Run a command as a process of its own."""
    done = subprocess.run([*_COMMAND, *arguments], input=input, capture_output=True, timeout=60, check=False)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """Start a command; the caller ends it."""
    return subprocess.Popen(
        [*_COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
