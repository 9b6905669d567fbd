"""Checks: the programs for Spark in examples/ run as their heads say, and print what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.spark import jars
from docs.test_examples import COLUMNS, flights
from support.spark import missing

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "spark_batch.py": "Kiel: 56,175.00\nLima: 56,175.00\nOslo: 56,325.00\n{'paid': 2250, 'refused': 750}\n",
    "spark_stream.py": "2000 visits, 2000 different ones\ndesktop: 667\nmobile: 1333\n",
    "spark_write.py": "1000 orders in 4 queues\n{'id': 17, 'customer': 'c7', 'cents': 85} small\n",
}


def test_all_of_them_are_here() -> None:
    assert {*EXPECTED, "spark_flights.py"} == {path.name for path in EXAMPLES.glob("spark_*.py")}


BY_PYTHON = (
    "import runpy, sys, cometmq.spark.jvm as jvm; jvm.jars = list; runpy.run_path(sys.argv.pop(1), None, '__main__')"
)
"""A program whose sessions have no jar."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("start", [[], ["-c", BY_PYTHON]], ids=["jvm", "python"])
@pytest.mark.parametrize("name", EXPECTED)
def test_example_runs(name: str, start: list[str], tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    if start and not os.environ.get("CMQ_LONG"):
        pytest.skip("takes minutes: only with CMQ_LONG=1")
    command = [sys.executable, *start, str(EXAMPLES / name)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith(EXPECTED[name]), ended.stdout


@pytest.mark.timeout(300)
def test_the_demo_goes_on_over_the_wire_and_in_spark(tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    small = tmp_path / "flights.csv"
    small.write_text("\n".join([COLUMNS, *flights(), ""]), encoding="ascii")
    command = [sys.executable, str(EXAMPLES / "flights_demo.py"), "--csv", str(small), "--served"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "All equal: 56 comparisons with the CSV." in ended.stdout
    # A narrow table divides the words over lines.
    assert ("engine in its JVM" if jars() else "engine in Python") in " ".join(ended.stdout.split())
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_the_demo_without_java(tmp_path: Path) -> None:
    """One line says what to install, and the demo is fine."""
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / "spark_flights.py"), str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 3
    assert len(ended.stdout.splitlines()) == 1
    assert "apt install openjdk-17-jre-headless" in ended.stdout
