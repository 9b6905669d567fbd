"""Transactions of the official client on our broker, and across the two brokers: open on one, ended on the other."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import pytest

from interop.java_client import Row
from interop.sites import Maker, Peer

pytestmark = pytest.mark.java

SETTINGS = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 3_000,
    "transactionCheckMax": 1_000,
    "transactionOpBatchInterval": 100,
}
"""Apache's broker asks again about what it has not written down as ended when the next round begins."""
QUIET = {**SETTINGS, "transactionCheckInterval": 600_000}
GROUP = "interop_transactions"


def bodies_of(rows: Sequence[Row]) -> list[str]:
    return sorted(base64.b64decode(row["body"]).decode() for row in rows)


def test_transactions_of_java_are_committed_once(peer: Peer, tmp_path: Path) -> None:
    topic, client = "JavaTransactions", peer.client
    bodies = [f"{letter}{number}" for number in range(6) for letter in "crCR"]
    with peer.broker(tmp_path / "store", maker=Maker.OURS, settings=SETTINGS) as broker:
        client.create_topic(broker, topic, queues=2)
        rows = client.transact(GROUP, topic, bodies, checks=12)
        assert {row["status"] for row in rows} == {"SEND_OK"}
        found = client.pull_all(topic, with_body=True)
    assert bodies_of(found) == sorted(body for body in bodies if body[0] in "cC")


@pytest.mark.parametrize(
    ("first", "second", "end"),
    [
        (Maker.OURS, Maker.JAVA, "clean"),
        (Maker.JAVA, Maker.OURS, "clean"),
        pytest.param(Maker.OURS, Maker.JAVA, "kill", marks=pytest.mark.java(full=True)),
        pytest.param(Maker.JAVA, Maker.OURS, "kill", marks=pytest.mark.java(full=True)),
    ],
)
def test_other_broker_ends_open_transactions(peer: Peer, tmp_path: Path, first: Maker, second: Maker, end: str) -> None:
    path, topic, client = tmp_path / "store", "CrossTransactions", peer.client
    with peer.broker(path, maker=first, settings=QUIET) as broker:
        client.create_topic(broker, topic, queues=2)
        client.transact(GROUP, topic, ["C0", "R0", "C1", "R1"])
        if end == "clean":
            broker.stop()
        else:
            broker.kill()
    with peer.broker(path, maker=second, settings=SETTINGS) as broker:
        client.await_topic(topic)
        client.transact(GROUP, topic, ["c2"], checks=4)
        found = client.pull_all(topic, with_body=True)
        broker.kill()
    assert bodies_of(found) == ["C0", "C1", "c2"]
