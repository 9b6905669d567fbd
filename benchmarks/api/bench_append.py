"""Appending from Python: batches of lists, numpy and Arrow arrays, single calls; async and sync; with and without keys.

After each round the store is read back: number of messages, order, and a CRC over all bodies must be right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cometmq
from bench_support import SLOTS, TAG, TOPIC, expected_checksum, is_quick, make_bodies
from bench_support import Checksum as BodyChecksum

QUICK = is_quick()
BODY_SIZES = [128, 1024]
# Multiples of every batch size.
MESSAGES = {128: 8000 if QUICK else 1_000_000, 1024: 8000 if QUICK else 252_000}


def key_of(message: int) -> str:
    return f"order-{message:08d}"


class Subject:
    """A store to append to, and what to append: prepared before the clock runs."""

    def __init__(self, path: Path, flush: str, body_size: int) -> None:
        self.bodies = make_bodies(body_size)
        self.store = cometmq.open(path, flush=flush)
        # The topic is made, and its queue with it, before the clock runs.
        self.store.append(TOPIC, self.bodies[0])

    def check(self, messages: int, *, keys: bool, ordered: bool = True) -> None:
        with self.store:
            found = BodyChecksum()
            if ordered:
                found.add_all(message.body for message in self.store.read(TOPIC, start=1))
                assert found == expected_checksum(self.bodies, messages)
            else:
                slots = sorted(bytes(message.body) for message in self.store.read(TOPIC, start=1))
                assert slots == sorted(self.bodies[i % SLOTS] for i in range(messages))
            if keys:
                for message in range(0, messages, max(1, messages // 50)):
                    (hit,) = self.store.find(TOPIC, key_of(message))
                    if ordered:
                        assert hit.queue_offset == message + 1


def as_list(bodies: list[bytes]) -> Any:
    return bodies


def as_numpy(bodies: list[bytes]) -> Any:
    return np.frombuffer(b"".join(bodies), dtype=f"V{len(bodies[0])}")


def as_arrow(bodies: list[bytes]) -> Any:
    return pa.array(bodies, pa.binary())


FORMS = {"list": as_list, "numpy": as_numpy, "arrow": as_arrow}


@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "1 key"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1000, 4000])
@pytest.mark.parametrize("body_size", BODY_SIZES)
def test_batches_async(
    meter: Any, directories: Callable[[], Path], body_size: int, batch: int, form: str, keyed: bool
) -> None:
    messages = MESSAGES[body_size]
    bodies = make_bodies(body_size)
    pieces = [FORMS[form](bodies[at : at + batch]) for at in range(0, SLOTS, batch)]
    texts = [key_of(i) for i in range(messages)] if keyed else []
    keys: list[Any] = [texts[at : at + batch] for at in range(0, len(texts), batch)]
    if form == "numpy":
        keys = [np.array(lot, dtype="S") for lot in keys]
    elif form == "arrow":
        keys = [pa.array(lot) for lot in keys]

    def work(subject: Subject) -> None:
        append_many = subject.store.append_many
        for call in range(messages // batch):
            append_many(TOPIC, pieces[call % len(pieces)], tags=TAG, keys=keys[call] if keyed else None)

    meter.run(
        f"python/append/async/{body_size}B/batch-{batch}/{'1 key' if keyed else 'no key'}/{form}",
        work,
        operations=messages,
        set_up=lambda: Subject(directories(), "async", body_size),
        check=lambda subject, _: subject.check(messages, keys=keyed),
        flush="async",
        keys=int(keyed),
        core=f"append/async/{body_size}B/batch-{batch}/{'1 key' if keyed else 'no key'}/fresh",
    )


@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "1 key"])
@pytest.mark.parametrize("body_size", BODY_SIZES)
def test_single_async(meter: Any, directories: Callable[[], Path], body_size: int, keyed: bool) -> None:
    messages = MESSAGES[body_size] // 4
    bodies = make_bodies(body_size)
    keys = [key_of(i) for i in range(messages)] if keyed else []

    def work(subject: Subject) -> None:
        append = subject.store.append
        if keyed:
            for i, key in enumerate(keys):
                append(TOPIC, bodies[i % SLOTS], tags=TAG, keys=key)
        else:
            for i in range(messages):
                append(TOPIC, bodies[i % SLOTS], tags=TAG)

    meter.run(
        f"python/append/async/{body_size}B/single/{'1 key' if keyed else 'no key'}",
        work,
        operations=messages,
        set_up=lambda: Subject(directories(), "async", body_size),
        check=lambda subject, _: subject.check(messages, keys=keyed),
        flush="async",
        keys=int(keyed),
        core=f"append/async/{body_size}B/batch-1/{'1 key' if keyed else 'no key'}/fresh",
    )


@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "1 key"])
@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("body_size", BODY_SIZES)
def test_batches_sync(meter: Any, directories: Callable[[], Path], body_size: int, batch: int, keyed: bool) -> None:
    calls = 4 if QUICK else 1000 if batch == 1 else 200
    messages = calls * batch
    bodies = make_bodies(body_size)
    pieces = [bodies[at : at + batch] for at in range(0, SLOTS, batch)]
    keys = [[key_of(call * batch + i) for i in range(batch)] for call in range(calls)]

    def work(subject: Subject) -> None:
        append_many = subject.store.append_many
        for call in range(calls):
            append_many(TOPIC, pieces[call % len(pieces)], tags=TAG, keys=keys[call] if keyed else None)

    meter.run(
        f"python/append/sync/{body_size}B/batch-{batch}/{'1 key' if keyed else 'no key'}",
        work,
        operations=messages,
        set_up=lambda: Subject(directories(), "sync", body_size),
        check=lambda subject, _: subject.check(messages, keys=keyed),
        flush="sync",
        keys=int(keyed),
        core=f"append/sync/{body_size}B/batch-{batch}/{'1 key' if keyed else 'no key'}",
    )


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize("body_size", BODY_SIZES)
def test_threads_sync(meter: Any, directories: Callable[[], Path], body_size: int, threads: int) -> None:
    calls = 2 if QUICK else 12_800 // threads
    messages = calls * threads
    bodies = make_bodies(body_size)

    def append_share(store: cometmq.Store, first: int) -> None:
        for i in range(first, messages, threads):
            store.append(TOPIC, bodies[i % SLOTS], tags=TAG)

    def work(subject: Subject) -> None:
        workers = [threading.Thread(target=append_share, args=(subject.store, first)) for first in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    meter.run(
        f"python/append/sync/{body_size}B/threads-{threads}/no key",
        work,
        operations=messages,
        set_up=lambda: Subject(directories(), "sync", body_size),
        check=lambda subject, _: subject.check(messages, keys=False, ordered=False),
        cpu_clock=time.process_time_ns,
        flush="sync",
        keys=0,
        core=f"append/sync/{body_size}B/appenders-{threads}/no key",
    )
