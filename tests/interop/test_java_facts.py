"""Upstream's broker over unusual store directories: the facts that our own files on disk rely on.

Each case changes a copy of a golden store and starts a real broker on it. These are no tests of our code. They are here
so that a new upstream version that behaves differently is seen, and so that nobody has to guess.
"""

from __future__ import annotations

import enum
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from interop.java_client import Client
from interop.processes import PEER_VERSION, PeerFailed
from interop.sites import Peer
from support.golden import GoldenStores, expected_records

pytestmark = pytest.mark.java(full=True)

TOPICS = ("Plain", "Batch", "Ordered")
"""Topics of the golden runs that have ordinary messages only."""

Place: TypeAlias = "tuple[str, int, int, str]"


def no_checkpoint(store: Path) -> None:
    (store / "checkpoint").unlink()


def zero_checkpoint(store: Path) -> None:
    (store / "checkpoint").write_bytes(bytes(4096))


def short_checkpoint(store: Path) -> None:
    os.truncate(store / "checkpoint", 24)


def abort(store: Path) -> None:
    (store / "abort").touch()


def no_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")


def no_index(store: Path) -> None:
    shutil.rmtree(store / "index")


def no_newest_index_file(store: Path) -> None:
    sorted((store / "index").iterdir())[-1].unlink()


def empty_index_folder(store: Path) -> None:
    no_index(store)
    (store / "index").mkdir()


def blank_queue_files(store: Path) -> None:
    """Queue files as they are just after their creation: right length, one hole."""
    for file in (store / "consumequeue").glob("*/*/*"):
        length = file.stat().st_size
        file.write_bytes(b"")
        os.truncate(file, length)


def no_queue_tails(store: Path) -> None:
    """The last three units of each queue are lost; the golden queues of these topics fill one file partly."""
    for topic in TOPICS:
        for file in (store / "consumequeue" / topic).glob("*/*"):
            units = file.read_bytes()
            written = next(at for at in range(0, len(units), 20) if units[at + 8 : at + 12] == bytes(4))
            file.write_bytes(units[: written - 60] + bytes(len(units) - written + 60))


def own_folder(store: Path) -> None:
    for name in ("cometmq/confirmed", "cometmq/handoff/000001"):
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(b"ours")


def own_topics_only(store: Path) -> None:
    """topics.json without upstream's own topics and without attributes beyond the necessary; no other configuration."""
    file = store / "config" / "topics.json"
    table = json.loads(file.read_text())["topicConfigTable"]
    shutil.rmtree(store / "config")
    file.parent.mkdir()
    file.write_text(json.dumps({"topicConfigTable": {name: table[name] for name in TOPICS}}))


def prewarmed_segment(store: Path) -> None:
    last = sorted((store / "commitlog").iterdir())[-1]
    following = last.with_name(f"{int(last.name) + last.stat().st_size:020d}")
    following.touch()
    os.truncate(following, last.stat().st_size)


def foreign_file_in(*folder: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        store.joinpath(*folder, "cometmq.tmp").write_bytes(b"x")

    return change


def short_segment(store: Path) -> None:
    os.truncate(sorted((store / "commitlog").iterdir())[-1], 700_000)


class Reach(enum.Enum):
    """How far back upstream's recovery repairs. The last segment is the whole of a store of one."""

    WHOLE_LOG = "whole log"
    LAST_SEGMENT = "last segment"
    NOTHING = "nothing"

    def is_complete(self, segments: int) -> bool:
        return self is Reach.WHOLE_LOG or (self is Reach.LAST_SEGMENT and segments == 1)


@dataclass(frozen=True, slots=True)
class Fact:
    """A change to a store that was stopped cleanly, and what a broker then does."""

    name: str
    changes: tuple[Callable[[Path], None], ...]
    messages: Reach = Reach.WHOLE_LOG
    """Of which messages every one is served at its queue offset."""
    keys: Reach = Reach.WHOLE_LOG
    """Of which messages every key is found."""


SERVED = [
    Fact("a folder of ours beside upstream's", (own_folder,)),
    Fact("topics.json lists our topics alone", (own_topics_only,)),
    Fact("a blank segment is ready behind the last", (prewarmed_segment,)),
    Fact("a blank segment is ready behind the last, crash", (prewarmed_segment, abort)),
    Fact("a foreign file in index", (foreign_file_in("index"),)),
    Fact("a foreign file in config", (foreign_file_in("config"),)),
    Fact("a foreign file in consumequeue", (foreign_file_in("consumequeue"),)),
    Fact("no checkpoint", (no_checkpoint,)),
    Fact("a zero checkpoint", (zero_checkpoint,)),
    Fact("a checkpoint of 24 bytes, crash", (short_checkpoint, abort)),
    Fact("no queues at all, clean", (no_queues,)),
    # After a crash upstream goes through the log again from the last segment that began before the checkpoint's time;
    # from the beginning if the checkpoint says nothing.
    Fact("nothing derived, zero checkpoint, crash", (no_queues, no_index, zero_checkpoint, abort)),
    Fact("queue files just created, zero checkpoint, crash", (blank_queue_files, zero_checkpoint, abort)),
    Fact("queue tails lost, zero checkpoint, crash", (no_queue_tails, zero_checkpoint, abort)),
    # A checkpoint written ahead of the units loses those of earlier segments.
    Fact("queue tails lost, checkpoint ahead of them, crash", (no_queue_tails, abort), messages=Reach.LAST_SEGMENT),
    Fact("no queues at all, checkpoint ahead of them, crash", (no_queues, abort), messages=Reach.LAST_SEGMENT),
    # The index is not rebuilt after a clean stop, and after a crash no further back than the queues.
    Fact("no index, clean", (no_index,), keys=Reach.NOTHING),
    Fact("an empty index folder, clean", (empty_index_folder,), keys=Reach.NOTHING),
    Fact("no index, crash", (no_index, abort), keys=Reach.LAST_SEGMENT),
]

REFUSED = [
    Fact("a foreign file in commitlog", (foreign_file_in("commitlog"),)),
    Fact("a foreign file in a queue", (foreign_file_in("consumequeue", "Plain", "0"),)),
    Fact("a segment that is too short", (short_segment,)),
]


def golden_places(name: str) -> set[Place]:
    return {
        (record["topic"], record["queueId"], record["queueOffset"], record["bodySha256"])
        for record in expected_records(name)
        if record["topic"] in TOPICS
    }


def served_places(client: Client) -> set[Place]:
    return {
        (row["topic"], row["queue"], row["queue_offset"], row["body_sha256"])
        for topic in TOPICS
        for row in client.pull_all(topic)
    }


def all_keys_found(client: Client, name: str) -> bool:
    """Asks for one key of every tenth message of the first topic; the golden run's own crash has cost others some."""
    keyed = [
        record for record in expected_records(name) if record["topic"] == TOPICS[0] and "KEYS" in record["properties"]
    ]
    return all(client.query_key(TOPICS[0], record["properties"]["KEYS"].split()[0]) for record in keyed[::10])


def changed_store(stores: GoldenStores, name: str, fact: Fact, target: Path) -> Path:
    store = stores.copy(name, "clean", target)
    for change in fact.changes:
        change(store)
    return store


@pytest.mark.parametrize("fact", SERVED, ids=lambda fact: fact.name)
@pytest.mark.parametrize("version", [PEER_VERSION, "4.9.7"])
def test_broker_serves(peer: Peer, golden_stores: GoldenStores, tmp_path: Path, fact: Fact, version: str) -> None:
    name = f"apache-{version}"
    store = changed_store(golden_stores, name, fact, tmp_path / "store")
    # The prewarmed one is not counted: upstream drops it at once.
    segments = len({record["physicalOffset"] >> 20 for record in expected_records(name)})
    with peer.broker(store, version=version) as broker:
        assert (served_places(peer.client) == golden_places(name)) is fact.messages.is_complete(segments)
        assert all_keys_found(peer.client, name) is fact.keys.is_complete(segments)
        broker.kill()
    if own_folder in fact.changes:
        assert (store / "cometmq" / "confirmed").read_bytes() == b"ours"
        assert (store / "cometmq" / "handoff" / "000001").read_bytes() == b"ours"


@pytest.mark.parametrize("fact", REFUSED, ids=lambda fact: fact.name)
def test_broker_refuses(peer: Peer, golden_stores: GoldenStores, tmp_path: Path, fact: Fact) -> None:
    store = changed_store(golden_stores, "apache-5.3.3", fact, tmp_path / "store")
    with pytest.raises(PeerFailed, match="length not matched message store config value"), peer.broker(store):
        pass
