"""The command line on a real broker's store, while it runs and after it was killed; the broker on a repaired one."""

from __future__ import annotations

from pathlib import Path

import pytest

import cometmq
from cometmq.store.repairing import repair
from interop.java_client import Client
from interop.patterns import bulk, mixed
from interop.servers import Broker
from interop.sites import Peer
from support.command_line import run, run_json

pytestmark = pytest.mark.java(full=True)

TOPIC = "Maintained"
QUEUES = 3


def send(client: Client, broker: Broker, seed: int) -> int:
    client.create_topic(broker, TOPIC, queues=QUEUES)
    specs = [*mixed(TOPIC, 60, queues=QUEUES, seed=seed), *bulk(TOPIC, 1500, queues=QUEUES, seed=seed + 1)]
    rows = list(client.send(specs))
    assert all(row["status"] == "SEND_OK" for row in rows)
    return len(rows)


def check_beside(path: Path, broker: Broker, sent: int) -> None:
    """Check the operations on a store that the broker has open: those allowed, those refused."""
    report = run_json("inspect", path, "--json", "--topic", TOPIC)
    assert report["health"]["writer_pid"] == broker.pid
    assert report["health"]["writer_is_ours"] is False
    assert report["health"]["unclean"] is False
    assert report["topics"][0]["messages"] == sent
    assert "a RocketMQ broker has it open for writing" in run("inspect", path).out
    assert run("verify", path).code == 0
    assert len(run("cat", path, TOPIC).lines) == sent
    for arguments in (["repair", path, "--yes"], ["repair", path, "--dry-run"], ["put", path, TOPIC, "/dev/null"]):
        refused = run(*arguments)
        assert refused.code == 3
        assert str(broker.pid) in refused.err


def keys_of(path: Path) -> dict[str, set[int]]:
    """Where the records of each key of the topic are, as far as one look-up of the client tells."""
    found: dict[str, set[int]] = {}
    with cometmq.open(path, mode="r") as store, store.read(TOPIC, unwrap=False) as reader:
        for message in reader:
            for key in message.keys:
                found.setdefault(key, set()).add(message.physical_offset)
    return {key: places for key, places in found.items() if len(places) < 32}


def test_beside_a_broker_and_after_it(peer: Peer, tmp_path: Path) -> None:
    path, client = tmp_path / "store", peer.client
    with peer.broker(path) as broker:
        sent = send(client, broker, seed=11)
        check_beside(path, broker, sent)
        broker.kill()
    assert run("verify", path).code == 0
    assert run_json("inspect", path, "--json")["health"]["unclean"] is True
    before = keys_of(path)
    assert before
    report = repair(path)
    assert report.complete
    assert run_json("verify", path, "--json")["problems"] == []

    with peer.broker(path) as broker:
        assert len(client.pull_all(TOPIC)) == sent
        for key, places in list(before.items())[:40]:
            assert {row["physical_offset"] for row in client.query_key(TOPIC, key)} == places
        sent += send(client, broker, seed=21)
        broker.stop()
    assert run("verify", path).code == 0
    with cometmq.open(path) as store:
        assert sum(queue.messages for queue in store.queues(TOPIC)) == sent


def test_broker_opens_a_cut_store(peer: Peer, tmp_path: Path) -> None:
    path, client = tmp_path / "store", peer.client
    with peer.broker(path) as broker:
        sent = send(client, broker, seed=31)
        broker.stop()
    with cometmq.open(path, mode="r") as store, store.read(TOPIC) as reader:
        places = [message.physical_offset for message in reader]
        segment_bytes = store.info().segment_bytes
    at = places[len(places) * 2 // 3]
    with (path / "commitlog" / f"{at // segment_bytes * segment_bytes:020d}").open("r+b") as file:
        file.seek(at % segment_bytes + 8)
        file.write(b"\xff\xff\xff\xff")  # the body's CRC
    assert run("verify", path).code == 4
    report = repair(path, cut_damage=True)
    assert report.cut_at == at
    assert run("verify", path).code == 0
    left = sum(place < at for place in places)
    assert left < sent

    with peer.broker(path) as broker:
        assert len(client.pull_all(TOPIC)) == left
        more = send(client, broker, seed=41)
        assert len(client.pull_all(TOPIC)) == left + more
        broker.kill()
    assert run("verify", path).code == 0


def places_pulled(client: Client) -> set[int]:
    """Where the messages are that a client pulls. At a gap it gets the next one twice, with the same queue offset."""
    return {row["physical_offset"] for row in client.pull_all(TOPIC)}


def test_broker_opens_a_filled_store(peer: Peer, tmp_path: Path) -> None:
    path, client = tmp_path / "store", peer.client
    with peer.broker(path) as broker:
        sent = send(client, broker, seed=51)
        broker.stop()
    with cometmq.open(path, mode="r") as store, store.read(TOPIC) as reader:
        places = [message.physical_offset for message in reader]
        segment_bytes = store.info().segment_bytes
    for at in (places.pop(len(places) // 3), places.pop(len(places) * 2 // 3), places.pop(-10)):
        with (path / "commitlog" / f"{at // segment_bytes * segment_bytes:020d}").open("r+b") as file:
            file.seek(at % segment_bytes + 8)
            file.write(b"\xff\xff\xff\xff")  # the body's CRC
    assert run("verify", path).code == 4
    report = repair(path, fill_damage=True)
    assert (report.damaged_places, report.filled_bytes) == (3, report.damaged_bytes)
    assert run("verify", path).code == 0
    left = sent - 3

    with peer.broker(path) as broker:
        assert places_pulled(client) == set(places)
        left += send(client, broker, seed=61)
        broker.kill()
    with peer.broker(path) as broker:  # recovers after a crash, over the fillers
        assert len(places_pulled(client)) == left
        broker.stop()
    assert run("verify", path).code == 0
    with cometmq.open(path) as store:
        assert len(list(store.read(TOPIC))) == left
