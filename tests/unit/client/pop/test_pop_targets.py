"""Checks: a simple consumer's brokers are asked in turn, and topics and brokers that are missing leave the others."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from cometmq.errors import (
    ClientStateError,
    ConnectionLost,
    RouteNotFound,
)

if TYPE_CHECKING:
    pass
from support.simple_scene import TOPIC, Scene, bodies, receive, receive_kept, run, warnings_of


def test_several_brokers_are_asked_in_turn_and_logged() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        for number, broker in enumerate(scene.brokers):
            scene.send(*(b"%d-%d" % (number, each) for each in range(4)), broker=number)
            assert broker.pops.hidden == {}
        firsts = [(await receive(engine, 1))[0].broker_name for _ in range(6)]
        assert {firsts.count(broker.name) for broker in scene.brokers} == {2}, "each gets its turn"
        assert len(await receive(engine, 100)) == 6, "together they fill it"
        # The first answer with messages counts; requests without messages take none.
        scene.loop.call_later(33, scene.send, b"new")
        began_s = scene.loop.time()
        assert bodies(await receive(engine, wait_s=40)) == [b"new"]
        assert 33 <= scene.loop.time() - began_s < 33.1
        waiting = [broker for broker in scene.brokers if broker.pops._waiting]
        assert len(waiting) == len(scene.brokers) - 1
        await engine.close()

    run(main, brokers=3)


def test_a_broker_that_is_gone_leaves_the_others() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        scene.cluster.stop(scene.brokers[1].address)
        scene.send(b"0", b"1")
        assert bodies(await receive(engine, 10)) == [b"0", b"1"]
        scene.loop.call_later(5, scene.send, b"2")
        assert bodies(await receive(engine, wait_s=20)) == [b"2"]
        scene.cluster.stop(scene.brokers[0].address)
        with pytest.raises(ConnectionLost):
            await receive(engine, wait_s=1)
        await engine.close()

    run(main, brokers=2)


def test_each_broker_that_is_gone_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        gone = scene.cluster.stop(scene.brokers[1].address)
        assert await receive(engine, wait_s=60) == []
        assert [text for text in warnings_of(caplog) if "cannot read from" in text] == [
            "group g: cannot read from broker b1; retrying: b1:10911 cannot be reached"
        ]
        scene.cluster.servers["b1:10911"] = gone
        scene.send(b"0", broker=1)
        assert bodies(await receive(engine, wait_s=60)) == [b"0"]
        assert [text for text in caplog.messages if "b1" in text][-1] == "group g: broker b1 can be read again"
        assert not any("cannot tell" in text for text in caplog.messages), "not at each try"
        await engine.close()

    caplog.set_level(logging.INFO, logger="cometmq.client.pop.simple_engine")
    run(main, brokers=2)


def test_without_a_name_server_the_error_says_so() -> None:
    async def main(scene: Scene) -> None:
        scene.cluster.stop("ns:9876")
        engine = await scene.started()
        with pytest.raises(ConnectionLost, match=r"no name server answered \(ns:9876 cannot be reached") as told:
            await receive(engine, wait_s=0)
        assert isinstance(told.value.__cause__, ConnectionLost)
        await engine.close()

    run(main)


def test_a_topic_that_is_not_there_beside_one_that_is(caplog: pytest.LogCaptureFixture) -> None:
    """Messages of the known topic come; the missing one is logged once, and raised when nothing else came."""

    async def main(scene: Scene) -> None:
        engine = scene.engine()
        await engine.subscribe(TOPIC, None)
        await engine.subscribe("Nowhere", None)
        await engine.start()
        scene.send(b"0", b"1", b"2")
        for _ in range(3):
            assert len(await receive(engine, 1)) == 1
        (told,) = warnings_of(caplog)
        assert "no name server knows topic Nowhere" in told
        assert "cometmq topic create Nowhere" in told
        for wait_s in (0, 5):
            began_s = scene.loop.time()
            with pytest.raises(RouteNotFound, match=r"topic Nowhere.*cometmq topic create Nowhere") as raised:
                await receive(engine, wait_s=wait_s)
            assert raised.value.topic == "Nowhere"
            assert wait_s <= scene.loop.time() - began_s < wait_s + 0.5
        scene.send(b"3")
        assert bodies(await receive_kept(engine)) == [b"3"], "a loop goes on"
        scene.broker.create("Nowhere", 1)
        scene.broker.append("Nowhere", 0, b"4", {})
        assert await receive(engine, wait_s=0) == []
        assert bodies(await receive(engine, wait_s=5)) == [b"4"]
        assert len(warnings_of(caplog)) == 1
        await engine.close()

    caplog.set_level(logging.INFO, logger="cometmq.client.pop.simple_engine")
    run(main)


@pytest.mark.parametrize("brokers", [1, 2])
def test_the_last_subscription_ends_while_a_receive_waits(brokers: int) -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        waiting = asyncio.ensure_future(receive(engine, wait_s=60))
        await asyncio.sleep(1)
        await engine.unsubscribe(TOPIC)
        with pytest.raises(ClientStateError, match="subscribes to nothing"):
            await waiting
        await engine.close()

    run(main, brokers=brokers)
