"""Checks: progress that is moved while it is read, and the broker that gets it while the master is unknown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.group.offset_stores import AdaptedOffsetStore, ReadOffset, RemoteOffsetStore
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.command import Command

QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=0)


def host(**parts: Any) -> Any:
    """An instance with what a test gives it."""
    return SimpleNamespace(api_address=lambda address: address, **parts)


@pytest.mark.parametrize("moved_to", [0, 3])
def test_progress_that_a_listener_made_meanwhile_wins(moved_to: int) -> None:
    """Also offset 0, the first: the broker's answer is older."""

    async def query_offset(group: str, queue: MessageQueue) -> int:
        store.update(queue, moved_to, increase_only=True)
        return 9

    store = RemoteOffsetStore(host(query_offset=query_offset), "g")
    assert asyncio.run(store.read(QUEUE, ReadOffset.MEMORY_FIRST_THEN_STORE)) == moved_to
    assert store.memory(QUEUE) == moved_to
    assert asyncio.run(store.read(QUEUE, ReadOffset.FROM_STORE)) == 9


@pytest.mark.parametrize("knows_slave", [True, False])
def test_master_is_looked_up_before_a_commit_to_a_slave(knows_slave: bool) -> None:
    """A name server that does not answer matters only where there is nobody else to tell."""
    addresses = {1: "s:1"} if knows_slave else {}
    asked: list[bool] = []
    sent: list[str] = []

    def broker_address(name: str, broker_id: int = 0, *, only_this: bool = False) -> tuple[str, bool] | None:
        if 0 in addresses:
            return addresses[0], False
        return None if only_this or not addresses else (addresses[1], True)

    async def update_route(topic: str, *, must_answer: bool) -> bool:
        asked.append(must_answer)
        addresses[0] = "m:1"
        return True

    network = SimpleNamespace(oneway=lambda address, command: sent.append(address))
    store = RemoteOffsetStore(host(broker_address=broker_address, update_route=update_route, network=network), "g")
    store.update(QUEUE, 5, increase_only=True)
    asyncio.run(store.persist(QUEUE))
    assert sent == ["m:1"]
    assert asked == [not knows_slave]
    asyncio.run(store.persist(QUEUE))
    assert len(asked) == 1


def test_first_offset_of_a_user_s_store_is_an_offset() -> None:
    class Own:
        def load(self, queue: MessageQueue) -> int:
            return 0

        def save(self, offsets: object) -> None:
            raise AssertionError("nothing is stored")

    assert asyncio.run(AdaptedOffsetStore(Own()).read(QUEUE, ReadOffset.FROM_STORE)) == 0


def test_progress_is_reported_one_way_unless_asked_otherwise() -> None:
    sent: list[str] = []
    asked: list[str] = []

    async def ask_broker(name: str, command: Command, *, timeout_ms: int, master_only: bool) -> Command:
        asked.append(command.fields["commitOffset"])
        return Command(code=0)

    network = SimpleNamespace(oneway=lambda address, command: sent.append(command.fields["commitOffset"]))
    known = SimpleNamespace(broker_address=lambda name, only_this=False: ("m:1", False))
    store = RemoteOffsetStore(host(ask_broker=ask_broker, network=network, **vars(known)), "g")
    store.update(QUEUE, 5, increase_only=True)
    asyncio.run(store.persist(QUEUE))
    assert (sent, asked) == (["5"], [])
    asyncio.run(store.persist(QUEUE, wait=True))
    assert (sent, asked) == (["5"], ["5"])
