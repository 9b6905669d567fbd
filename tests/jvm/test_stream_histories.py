"""Checks: a stream of the engine in the JVM gives each message once, whatever happens to topics and driver meanwhile.

``CMQ_LONG=1`` runs 2,000 histories.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.jvm import SOURCES, compiled, spark_jars, spark_options
from support.stream_histories import SEEDS, each_message_comes_once


class Program:
    """The program ``StreamDriver``, which answers one call at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, name: str, **values: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": name, **values}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer
        return answer


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("driver")
    java, *options = compiled([SOURCES / "spark" / "StreamDriver.java"], folder / "classes", *spark_jars())
    command = [java, *spark_options(), *options, "cometmq.spark.StreamDriver", str(folder)]
    pipe = subprocess.PIPE
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        try:
            yield Program(process)
        finally:
            process.kill()
            process.communicate()


class Driver:
    """A stream in the JVM, whose position is a checkpoint's text."""

    def __init__(self, program: Program, folder: Path, options: Mapping[str, str]) -> None:
        self._program = program
        self._given = {"options": dict(options), "checkpoint": str(folder)}
        self.restart()
        self.position: str = program.call("initial")["offset"]

    def restart(self) -> None:
        self._program.call("start", **self._given)

    def plan(self) -> str:
        offset: str = self._program.call("plan", start=self.position)["offset"]
        return offset

    def read(self, end: str) -> Iterator[int]:
        yield from self._program.call("read", start=self.position, end=end)["rows"]

    def stop(self) -> None:
        self._program.call("stop")


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_of_topics_gives_each_message_once(tmp_path: Path, program: Program, seed: int) -> None:
    each_message_comes_once(tmp_path / "store", seed, partial(Driver, program, tmp_path / "checkpoint"))
