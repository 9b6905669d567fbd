"""Programs in Java that call the engine for the JVM, compiled by a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cometmq.spark.jvm import jars

__all__ = ["SOURCES", "compiled", "passes", "spark_jars", "spark_options"]

SOURCES = Path(__file__).resolve().parent.parent / "jvm" / "java" / "cometmq"


def compiled(sources: list[Path], classes: Path, *more_jars: Path) -> list[str]:
    """Compile a program, and return the command that runs it with the options added behind `java`."""
    javac, java = shutil.which("javac"), shutil.which("java")
    if not jars() or javac is None or java is None:
        pytest.skip("the engine for the JVM is not built: Java 17's javac was not found")
    path = ":".join([jars()[0], *map(str, more_jars)])
    subprocess.run([javac, "-cp", path, "-d", classes, *sources], check=True)
    return [java, "-cp", f"{classes}:{path}"]


def spark_jars() -> list[Path]:
    """Return the jars of PySpark."""
    pyspark = pytest.importorskip("pyspark")
    return sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))


def spark_options() -> list[str]:
    """Return the options of ``java`` without which Spark does not start on Java 17."""
    packages = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "sun.nio.ch", "sun.util.calendar")
    return [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]


def passes(command: list[str], *arguments: object) -> None:
    """Run a program that prints `passed` when it has."""
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["passed"]), done.stdout + done.stderr
