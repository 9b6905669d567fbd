"""Checks: no call of the native library from Java can crash the JVM, nor can what others do to its files, handlers and
readers; Python reads where it cannot be loaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cometmq.spark.jvm import jars
from support.jvm import SOURCES, compiled, passes, spark_jars
from support.small_store import open_small

MESSAGES = 20_000
SYS_FLAG_AT = 36


def say_lz4(store: Path, place: int) -> None:
    """Set the system flag of the record at a physical offset to "compressed, by LZ4"."""
    segments = sorted((store / "commitlog").iterdir())
    into = place % segments[0].stat().st_size
    with segments[place // segments[0].stat().st_size].open("r+b") as log:
        log.seek(into + SYS_FLAG_AT)
        log.write((1 | 1 << 8).to_bytes(4, "big"))


def test_two_copies_of_the_library_pass_foreign_faults_on(tmp_path: Path) -> None:
    java, *options = compiled([SOURCES / "engine" / "TwoCopies.java"], tmp_path / "classes")
    with open_small(tmp_path / "store") as store:
        store.append("orders", b"x")
    passes([java, *options, "cometmq.engine.TwoCopies"], jars()[0], tmp_path / "store", tmp_path / "foreign")


def test_rows_survive_a_foreign_close_and_lost_pages_fail_theirs(tmp_path: Path) -> None:
    sources = [SOURCES / "engine" / "Handles.java", SOURCES / "spark" / "ReaderHostility.java"]
    java, *options = compiled(sources, tmp_path / "classes", *spark_jars())
    with open_small(tmp_path / "store") as store:
        store.append_many("orders", [bytes([1]) * (1 << 16)] * 10, tags="red", queue=0)
    passes([java, *options, "cometmq.spark.ReaderHostility"], tmp_path / "store", 10)


def test_hostile_calls_raise_exceptions(tmp_path: Path) -> None:
    java, *options = compiled([SOURCES / "engine" / "HostileCalls.java"], tmp_path / "classes")
    with open_small(tmp_path / "store") as store:
        store.create_topic("orders", queues=1)
        store.append_many("orders", [b"body %d" % number for number in range(MESSAGES)], queue=0)
        store.create_topic("packed", queues=1)
        store.append_many("packed", [b"plain"] * 5, queue=0)
        place = [message.physical_offset for message in store.read("packed")][4]
    say_lz4(tmp_path / "store", place)
    command = [java, "-Xcheck:jni", *options, "cometmq.engine.HostileCalls"]
    done = subprocess.run(
        [*command, str(tmp_path / "store"), str(MESSAGES)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["passed"]), done.stdout + done.stderr
    assert "WARNING in native method" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_auto_reads_by_python_where_the_library_cannot_be_loaded(tmp_path: Path) -> None:
    java, *options = compiled([SOURCES / "spark" / "WithoutLibrary.java"], tmp_path / "classes", *spark_jars())
    library = tmp_path / "no library.so"
    library.write_bytes(b"no library")
    with open_small(tmp_path / "store") as store:
        store.append("t", b"x")
    done = subprocess.run(
        [java, f"-Dcometmq.native.library={library}", *options, "cometmq.spark.WithoutLibrary", tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
    )
    auto, only_jvm, python, opened = (line for line in done.stdout.splitlines() if ": " in line)
    assert (auto, python) == ("auto: Python", "python: Python"), done.stdout + done.stderr
    assert "the native library cannot be loaded" in only_jvm
    assert "engine=auto lets Python do it" in only_jvm
    assert "cometmq.native.library" in opened
