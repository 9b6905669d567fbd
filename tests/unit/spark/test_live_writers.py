"""Checks: scans, streams and followers beside a writer process that fills 64 queues: no row is missing, none twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import pytest

import cometmq
from support.small_store import open_small

pytest.importorskip("pyspark", reason="pyspark is not installed")

from unit.spark.test_stream_histories import Driver

QUEUES = 64
ROUNDS = 12
LIMIT_S = 120

WRITER = """
import random, sys
from pathlib import Path
from support.small_store import open_small
dice, number = random.Random(64), 0
with open_small(Path(sys.argv[1])) as store:
    print("open", flush=True)
    for line in sys.stdin:  # a number of messages to append
        count = int(line)
        while count:
            many = min(count, dice.choice((1, 1, 1, 7, 64)))
            bodies = [b"%d" % n for n in range(number, number + many)]
            queue = dice.randrange(64)
            if many == 1:
                store.append("t", bodies[0], queue=queue)
            else:
                store.append_many("t", bodies, queue=dice.choice((queue, None)))
            number += many
            count -= many
print(number, flush=True)
"""


class Writer:
    """The writer's process, which appends when asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout
        assert self._output.readline() == "open\n"

    def append(self, count: int) -> None:
        """Have it append; it does so beside the caller."""
        self._input.write(f"{count}\n")
        self._input.flush()

    def end(self) -> int:
        """Return how many messages it appended, when it has closed its store."""
        self._input.close()
        return int(self._output.readline())


def in_queues(places: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the offsets of each queue in the order in which they came."""
    offsets: dict[int, list[int]] = {}
    for queue, offset in places:
        offsets.setdefault(queue, []).append(offset)
    return offsets


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_small(tmp_path / "store") as store:
        store.create_topic("t", queues=QUEUES)
    return tmp_path / "store"


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WRITER, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as process:
        yield Writer(process)


def test_scans_beside_a_writer_end_without_holes(path: Path, writer: Writer) -> None:
    """A scan has each queue up to some offset, and what a scan had before it has, too."""
    before: Counter[int] = Counter()
    with open_small(path, mode="r") as view:
        for _ in range(ROUNDS):
            writer.append(1000)
            for _ in range(3):
                table = view.scan("t").to_table()
                places = (table.column(name).to_pylist() for name in ("queue_id", "queue_offset"))
                offsets = in_queues(zip(*places, strict=True))
                assert all(found == list(range(len(found))) for found in offsets.values())
                bodies = Counter(int(body) for body in table.column("body").to_pylist())
                assert set(bodies.values()) <= {1}
                assert before <= bodies
                before = bodies
        count = writer.end()
        assert view.scan("t").count() == count
        assert sorted(int(body) for body in view.scan("t").to_table().column("body").to_pylist()) == list(range(count))


@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": "300"}], ids=["all", "some"])
def test_stream_beside_a_writer_gives_each_row_once(path: Path, writer: Writer, options: dict[str, str]) -> None:
    writer.append(500)
    given = {"path": str(path), "topic": "t", "startingOffsets": "earliest", "failOnDataLoss": "true"}
    driver = Driver({**given, **options})
    seen: Counter[int] = Counter()

    def batch() -> bool:
        end = driver.plan()
        if end == driver.position:
            return False
        found = list(driver.read(end))
        assert sorted(driver.read(end)) == sorted(found), "a repeated micro-batch"
        seen.update(found)
        driver.position = end
        return True

    try:
        for number in range(ROUNDS):
            writer.append(500)
            batch()
            if number % 4 == 3:
                driver.restart()
        count = writer.end()
        while batch():
            continue
    finally:
        driver.stop()
    assert seen == Counter(range(count))


@pytest.mark.parametrize("topic", ["t", None])
def test_follower_of_a_writer_has_each_message_once(path: Path, writer: Writer, topic: str | None) -> None:
    """One that follows from the begin, and one that joins while the writer appends."""
    seen: list[list[tuple[int, int]]] = [[], []]
    numbers: list[int] = []

    def follow(into: list[tuple[int, int]], messages: Iterator[cometmq.Message]) -> None:
        for message in messages:
            if bytes(message) == b"end":
                return
            into.append((message.queue_id, message.queue_offset))
            if into is seen[0]:
                numbers.append(int(bytes(message)))

    with open_small(path, mode="r") as view:
        readers = [view.read(topic, follow=True, timeout_s=LIMIT_S)]
        threads = [threading.Thread(target=follow, args=(seen[0], readers[0]))]
        threads[0].start()
        for number in range(ROUNDS):
            writer.append(1000)
            if number == ROUNDS // 2:
                readers.append(view.follow(topic, timeout_s=LIMIT_S))
                threads.append(threading.Thread(target=follow, args=(seen[1], readers[1])))
                threads[1].start()
        count = writer.end()
        with open_small(path) as store:
            store.append("t", b"end", queue=0)
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    assert sorted(numbers) == list(range(count))
    whole, joined = in_queues(seen[0]), in_queues(seen[1])
    assert all(found == list(range(len(found))) for found in whole.values())
    assert all(found == whole[queue][-len(found) :] for queue, found in joined.items())
