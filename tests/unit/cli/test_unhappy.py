"""Checks: wrong paths, files and streams end in one line that says what is wrong, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cometmq
from support.command_line import run, spawn
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"order %d" % number for number in range(20)])
    return path


@pytest.mark.parametrize("command", [["inspect"], ["verify"], ["cat"], ["repair", "--yes"]])
def test_no_store(tmp_path: Path, command: list[str]) -> None:
    missing = run(command[0], tmp_path / "nothing", *command[1:])
    assert (missing.code, missing.out) == (3, "")
    assert "there is no" in missing.err
    assert "create" not in missing.err
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_text("text")
    file = run(command[0], tmp_path / "file", *command[1:])
    assert (file.code, file.err) == (3, f"cometmq: {tmp_path / 'file'} is a file; a store is a directory\n")


def test_put_looks_at_its_files_first(tmp_path: Path) -> None:
    for name, reason in (("nothing", "No such file or directory"), (".", "Is a directory")):
        outcome = run("put", tmp_path / "new", "t", tmp_path / name)
        assert (outcome.code, outcome.out) == (3, "")
        assert outcome.err == f"cometmq: cannot use {tmp_path / name}: {reason}\n"
        assert not (tmp_path / "new").exists()


def test_put_says_nothing_of_nothing(path: Path) -> None:
    outcome = run("put", path, "t", "--tags", "a||b", input="x\n")
    assert (outcome.code, outcome.out) == (3, "")
    assert "|| divides tags" in outcome.err


def test_a_queue_that_is_not_there(path: Path) -> None:
    assert run("cat", path, "orders", "--queue", "7").err == "cometmq: the topic orders has no queue 7\n"
    with cometmq.open(path) as store:
        store.append("u", b"x")
        with pytest.raises(cometmq.TopicNotFound, match="the topics orders and u have no queue 7"):
            store.read(["orders", "u"], queues=[7])


def test_a_topic_that_is_not_there(path: Path, tmp_path: Path) -> None:
    for command in (["cat", path, "order"], ["inspect", path, "--topic", "order"]):
        assert run(*command).err == f"cometmq: there is no topic 'order' in {path}; did you mean 'orders'?\n"
    assert run("cat", path, "x").err == f"cometmq: there is no topic 'x' in {path}; known topics: orders\n"
    with cometmq.open(path) as store:
        for number in range(11):
            store.append(f"t{number:02}", b"x")
        with pytest.raises(cometmq.TopicNotFound, match=r"; known topics: orders, t00, .*, t08 and 2 more"):
            store.queue("nowhere")
    with cometmq.open(tmp_path / "new") as store, pytest.raises(cometmq.TopicNotFound, match="it has none yet"):
        store.read("x")


def test_one_queue_where_several_are_meant(path: Path) -> None:
    with cometmq.open(path) as store, pytest.raises(TypeError, match=r"queues=\[0\]"):
        store.read("orders", queues=0)  # type: ignore[arg-type]


def test_an_empty_key(path: Path) -> None:
    outcome = run("cat", path, "orders", "--key", "")
    assert outcome.code == 2
    assert "--key must not be empty" in outcome.err


def test_settings_that_no_broker_knows(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.properties"
    config.write_text("mappedFileSizeCommitLog=1048576\nmappedFileSizeComitLog=5\n")
    outcome = spawn("inspect", path, "--config", config)
    assert outcome.code == 0
    assert f"warning: {config}: no RocketMQ broker knows mappedFileSizeComitLog" in outcome.err
    config.write_text("root:x:0:0:root:/root:/bin/bash\n")
    outcome = spawn("inspect", path, "--config", config)
    assert outcome.code == 3
    assert "has no setting of a RocketMQ broker, but root" in outcome.err


@pytest.mark.parametrize("command", ["inspect", "verify", "cat", "put"])
def test_a_stream_that_is_closed(path: Path, command: str) -> None:
    shell = (
        f'"$0" -m cometmq {command} "$1" orders <&- >&-' if command == "put" else f'"$0" -m cometmq {command} "$1" >&-'
    )
    done = subprocess.run(["sh", "-c", shell, sys.executable, path], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    with cometmq.open(path, mode="r") as store:
        assert len(list(store.read())) == 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_has_no_room(path: Path, unbuffered: str) -> None:
    command = [sys.executable, "-m", "cometmq", "cat", path]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr == b"cometmq: input or output failed: No space left on device\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_store_that_may_not_be_read(path: Path) -> None:
    path.chmod(0)
    outcome = run("inspect", path)
    path.chmod(0o700)
    assert outcome.code == 3
    assert "Permission denied" in outcome.err
