"""Reading from Python: iteration, bodies, tags, look-ups by key and by offset, a consumer group with commits.

One store for the module: 1 million messages of 128 B in one queue, one key each, the tag ``rare`` on every thousandth
and 16 others in turn. Each round's result is checked: how many messages, which ones, and the CRC over their bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cometmq
from bench_support import SLOTS, TOPIC, expected_checksum, is_quick, make_bodies, new_directory
from bench_support import Checksum as BodyChecksum

QUICK = is_quick()
MESSAGES = 8000 if QUICK else 1_000_000
LOOKUPS = 100 if QUICK else 50_000
BATCH = SLOTS
COMMIT_EVERY = 1000


def tag_of(message: int) -> str:
    return "rare" if message % 1000 == 0 else f"T{message % 16:x}"


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    return make_bodies(128)


@pytest.fixture(scope="module")
def store(bodies: list[bytes]) -> Iterator[cometmq.Store]:
    with new_directory() as path:
        with cometmq.open(path, flush="async") as filling:
            for at in range(0, MESSAGES, BATCH):
                numbers = range(at, at + BATCH)
                tags = [tag_of(i) for i in numbers]
                filling.append_many(TOPIC, bodies, tags=tags, keys=[f"order-{i:08d}" for i in numbers])
        with cometmq.open(path, flush="async") as opened:  # units and keys are in their files, as after a while of use
            yield opened


def test_iterate(meter: Any, store: cometmq.Store) -> None:
    def work(reader: Any) -> int:
        count = 0
        for _ in reader:
            count += 1
        return count

    def check(_: Any, count: int) -> None:
        assert count == MESSAGES

    meter.run("python/read/iterate", work, operations=MESSAGES, set_up=lambda: store.read(TOPIC), check=check)


def test_iterate_bodies(meter: Any, store: cometmq.Store, bodies: list[bytes]) -> None:
    expected = expected_checksum(bodies, MESSAGES)

    def work(reader: Any) -> BodyChecksum:
        return BodyChecksum().add_all(message.body for message in reader)

    def check(_: Any, found: BodyChecksum) -> None:
        assert found == expected

    meter.run(
        "python/read/iterate, body and its CRC",
        work,
        operations=MESSAGES,
        set_up=lambda: store.read(TOPIC),
        check=check,
    )


def test_fetch(meter: Any, store: cometmq.Store) -> None:
    def work(reader: Any) -> int:
        count = 0
        while messages := reader.fetch(512):
            count += len(messages)
        return count

    def check(_: Any, count: int) -> None:
        assert count == MESSAGES

    meter.run(
        "python/read/fetch, lists of 512", work, operations=MESSAGES, set_up=lambda: store.read(TOPIC), check=check
    )


@pytest.mark.parametrize(
    ("tags", "share"), [("absent", "none"), ("rare", "1 of 1000"), ("T3 || T7 || Tb || Tf", "1 of 4")]
)
def test_tags(meter: Any, store: cometmq.Store, tags: str, share: str) -> None:
    wanted = tags.split(" || ")
    expected = [i for i in range(MESSAGES) if tag_of(i) in wanted]

    def work(reader: Any) -> list[int]:
        return [message.queue_offset for message in reader]

    def check(_: Any, found: list[int]) -> None:
        assert found == expected

    meter.run(
        f"python/read/tag scan, {share}, per message passed",
        work,
        operations=MESSAGES,
        unit="ns",
        set_up=lambda: store.read(TOPIC, tags=tags),
        check=check,
    )


def pick(lookup: int) -> int:
    return lookup * 2654435761 % MESSAGES


def test_find(meter: Any, store: cometmq.Store) -> None:
    keys = [f"order-{pick(i):08d}" for i in range(LOOKUPS)]

    def work(_: Any) -> list[int]:
        return [next(store.find(TOPIC, key)).queue_offset for key in keys]

    def check(_: Any, found: list[int]) -> None:
        assert found == [pick(i) for i in range(LOOKUPS)]

    meter.run("python/read/by key", work, operations=LOOKUPS, unit="us", set_up=lambda: None, check=check, keys=1)


def test_get(meter: Any, store: cometmq.Store, bodies: list[bytes]) -> None:
    offsets = [pick(i) for i in range(LOOKUPS)]

    def work(_: Any) -> BodyChecksum:
        return BodyChecksum().add_all(store.get(TOPIC, 0, offset).body for offset in offsets)

    def check(_: Any, found: BodyChecksum) -> None:
        assert found == BodyChecksum().add_all(bodies[offset % SLOTS] for offset in offsets)

    meter.run("python/read/by queue offset", work, operations=LOOKUPS, unit="us", set_up=lambda: None, check=check)


def test_consume(meter: Any, store: cometmq.Store) -> None:
    messages = min(MESSAGES, 100_000)
    groups = iter(range(1000))

    def set_up() -> cometmq.Consumer:
        return store.consumer(f"bench-{next(groups)}", TOPIC)

    def work(consumer: cometmq.Consumer) -> int:
        count = 0
        while count < messages:
            count += len(consumer.fetch(COMMIT_EVERY))
            consumer.commit()
        return count

    def check(consumer: cometmq.Consumer, count: int) -> None:
        assert count == messages
        assert consumer.committed() == {(TOPIC, 0): messages}
        consumer.close()

    meter.run(
        f"python/consume, commit every {COMMIT_EVERY}, durably",
        work,
        operations=messages,
        set_up=set_up,
        check=check,
    )


def test_commit(meter: Any, store: cometmq.Store) -> None:
    commits = 5 if QUICK else 100
    groups = iter(range(1000))

    def set_up() -> tuple[cometmq.Consumer, list[cometmq.Message]]:
        consumer = store.consumer(f"commit-{next(groups)}", TOPIC)
        return consumer, consumer.fetch(commits)

    def work(subject: tuple[cometmq.Consumer, list[cometmq.Message]]) -> None:
        consumer, messages = subject
        for message in messages:
            consumer.commit(message)

    def check(subject: tuple[cometmq.Consumer, list[cometmq.Message]], _: None) -> None:
        assert subject[0].committed() == {(TOPIC, 0): commits}
        subject[0].close()

    meter.run("python/commit, durably", work, operations=commits, unit="us", set_up=set_up, check=check)
