"""Checks: no call of the native library from Java can crash the JVM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cometmq.spark.jvm import jars
from support.small_store import open_small

SOURCE = Path(__file__).parent / "java" / "cometmq" / "engine" / "HostileCalls.java"
MESSAGES = 20_000


def test_hostile_calls_raise_exceptions(tmp_path: Path) -> None:
    javac, java = shutil.which("javac"), shutil.which("java")
    if not jars() or javac is None or java is None:
        pytest.skip("the engine for the JVM is not built: Java 17's javac was not found")
    with open_small(tmp_path / "store") as store:
        store.create_topic("orders", queues=1)
        store.append_many("orders", [b"body %d" % number for number in range(MESSAGES)], queue=0)
    classes = tmp_path / "classes"
    subprocess.run([javac, "-cp", jars()[0], "-d", classes, SOURCE], check=True)
    command = [java, "-Xcheck:jni", "-cp", f"{classes}:{jars()[0]}", "cometmq.engine.HostileCalls"]
    done = subprocess.run(
        [*command, str(tmp_path / "store"), str(MESSAGES)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["passed"]), done.stdout + done.stderr
    assert "WARNING in native method" not in done.stdout + done.stderr, done.stdout + done.stderr
