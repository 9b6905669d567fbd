"""Checks: the simple consumer's machine on virtual time, against one and several brokers."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.client.instance.service_state import ServiceState
from cometmq.errors import (
    BrokerError,
    ClientStateError,
    ConnectionLost,
    GroupTaken,
    InvalidArgument,
    MalformedCommand,
    RouteNotFound,
    StaleHandle,
)
from cometmq.remoting.codes import RequestCode

if TYPE_CHECKING:
    pass
from support.simple_scene import TOPIC, Scene, bodies, receive, receive_kept, run, warnings_of


def test_running_info_shows_held_messages_and_their_age() -> None:

    async def main(scene: Scene) -> None:
        scene.send(b"0", b"1", b"2", b"3")
        engine = await scene.started(invisible_time_ms=30_000)
        began_ms = scene.loop.now_ms()
        messages = await receive(engine, 4)
        await asyncio.sleep(20)
        await engine.ack(messages[:1])
        await engine.extend(messages[1], invisible_s=30)
        await engine.extend(messages[2], invisible_s=0)
        held = engine.running_info().pop_queues
        assert {queue.topic for queue in held} == {TOPIC}
        assert sum(one.wait_ack_count for one in held.values()) == 2
        await asyncio.sleep(20)
        ((queue, one),) = engine.running_info().pop_queues.items()
        assert (queue.queue_id, one.wait_ack_count) == (messages[1].queue_id, 1)
        oldest_ms = one.oldest_pop_timestamp_ms
        assert oldest_ms is not None
        assert began_ms <= oldest_ms < began_ms + 1_000
        await engine.ack(messages[1:2])
        assert engine.running_info().pop_queues == {}
        await engine.close()

    run(main)


def test_received_message_is_invisible_until_acknowledged_or_expired() -> None:

    async def main(scene: Scene) -> None:
        scene.send(b"0", b"1", b"2")
        one, two = await scene.started(), await scene.started()
        first = await receive(one, 2)
        second = await receive(two, wait_s=0)
        assert bodies(first + second) == [b"0", b"1", b"2"]
        await one.ack(first)
        assert scene.broker.pops.acked == [message.body_bytes for message in first]
        came = await receive(one, wait_s=70)
        assert bodies(came) == bodies(second)
        assert came[0].reconsume_times == 1
        assert came[0].topic == TOPIC
        await one.ack(came)
        assert scene.broker.pops.hidden == {}
        (asked,) = scene.cluster.asked(RequestCode.BATCH_ACK_MESSAGE)
        assert not asked.fields
        (asked,) = scene.cluster.asked(RequestCode.ACK_MESSAGE)
        assert asked.fields["topic"] == "%RETRY%g_T"
        await one.close()
        await two.close()

    run(main)


def test_a_held_receive_gets_a_message_as_it_comes() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        scene.loop.call_later(40, scene.send, b"late")
        began_s = scene.loop.time()
        assert bodies(await receive(engine, wait_s=60)) == [b"late"]
        assert 40 <= scene.loop.time() - began_s < 40.1
        assert await receive(engine, wait_s=1) == []
        await engine.close()

    run(main)


def test_transient_failures_end_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        gone = scene.cluster.stop(scene.broker.address)
        waiting = asyncio.ensure_future(receive_kept(engine))
        await asyncio.sleep(30)
        name_server = scene.cluster.stop("ns:9876")
        await asyncio.sleep(30)
        unreachable, no_route = warnings_of(caplog)
        assert "receives nothing until this is over: b0:10911 cannot be reached" in unreachable
        assert "no name server answered" in no_route
        asked = len(scene.cluster.asked(RequestCode.POP_MESSAGE))
        assert 20 <= asked <= 35, "it waits longer and longer, and not too long"
        scene.cluster.servers.update({"ns:9876": name_server, gone.address: gone})  # type: ignore[union-attr]
        began_s = scene.loop.time()
        scene.send(b"0")
        assert bodies(await waiting) == [b"0"]
        assert scene.loop.time() - began_s <= 2.1
        assert caplog.messages[-1] == "group g receives again"
        await engine.close()

    caplog.set_level(logging.INFO, logger="cometmq.client.pop.simple_engine")
    run(main)


def test_loop_without_servers_names_the_addresses() -> None:
    async def main(scene: Scene) -> None:
        name_server = scene.cluster.stop("ns:9876")
        engine = await scene.started()
        with pytest.raises(ConnectionLost, match=r"no name server answered \(ns:9876 .*name_servers has its address"):
            await receive_kept(engine)
        scene.cluster.servers["ns:9876"] = name_server
        scene.send(b"0")
        assert bodies(await receive_kept(engine)) == [b"0"]
        scene.cluster.stop("ns:9876")
        waiting = asyncio.ensure_future(receive_kept(engine))
        await asyncio.sleep(10)
        scene.send(b"1")
        assert bodies(await waiting) == [b"1"], "with known brokers no name server is needed"
        await engine.close()

    run(main)


def test_a_loop_that_waits_for_servers_ends_with_the_consumer() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        scene.cluster.stop(scene.broker.address)
        waiting = asyncio.ensure_future(receive_kept(engine))
        await asyncio.sleep(31)
        closed_s = scene.loop.time()
        await engine.close()
        assert await waiting == []
        assert scene.loop.time() - closed_s < 1

    run(main)


def test_permanent_failures_end_a_loop() -> None:
    async def main(scene: Scene) -> None:
        engine = scene.engine()
        await engine.subscribe("Nowhere", None)
        await engine.start()
        with pytest.raises(RouteNotFound, match="cometmq topic create Nowhere"):
            await receive_kept(engine)
        await engine.unsubscribe("Nowhere")
        with pytest.raises(ClientStateError, match="subscribe"):
            await receive_kept(engine)
        await engine.subscribe(TOPIC, None)
        assert scene.broker.topics.pop(TOPIC)  # the name server was asked before
        with pytest.raises(BrokerError, match="create the topic"):
            await receive_kept(engine)
        await engine.close()

    run(main)


def test_extending_hides_for_longer_and_makes_another_handle() -> None:
    async def main(scene: Scene) -> None:
        scene.send(b"0")
        engine = await scene.started()
        (message,) = await receive(engine, invisible_s=10)
        old = message.pop_handle
        await asyncio.sleep(8)
        new = await engine.extend(message, invisible_s=30)
        assert message.pop_handle == new != old
        assert await receive(engine, wait_s=25) == []
        await engine.ack([message])
        assert scene.broker.pops.acked == [b"0"]
        assert await receive(engine, wait_s=30) == []
        with pytest.raises(InvalidArgument, match="invisible_s"):
            await engine.extend(message, invisible_s=-1)
        await engine.close()

    run(main)


def test_to_give_a_message_back() -> None:
    async def main(scene: Scene) -> None:
        scene.send(b"0")
        engine = await scene.started()
        (message,) = await receive(engine)
        await engine.extend(message, invisible_s=0)
        (again,) = await receive(engine, wait_s=1)
        assert (again.body_bytes, again.reconsume_times) == (b"0", 1)
        await engine.close()

    run(main)


def test_kept_message_stays_invisible_until_released() -> None:
    async def main(scene: Scene) -> None:
        scene.send(b"0", b"1", b"2")
        engine = await scene.started(invisible_time_ms=10_000, extend_for_ms=100_000)
        kept, gone, hanging = await receive(engine)
        engine.keep([kept, gone, hanging])
        engine.keep([kept])
        await asyncio.sleep(60)
        assert len(scene.broker.pops.hidden) == 3
        assert len(scene.cluster.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) in (33, 36)
        await engine.ack([kept])
        await engine.let_go([gone])
        (came,) = await receive(engine, wait_s=15)
        assert came.body_bytes == gone.body_bytes
        await engine.ack([came])
        await asyncio.sleep(60)
        (came,) = await receive(engine, wait_s=0)
        assert came.body_bytes == hanging.body_bytes, "the hanging member keeps it no longer"
        await engine.close()

    run(main)


def test_a_change_that_fails_is_tried_again_or_given_up() -> None:
    async def main(scene: Scene) -> None:
        scene.send(b"0")
        engine = await scene.started(invisible_time_ms=10_000)
        (message,) = await receive(engine)
        engine.keep([message])
        await asyncio.sleep(4)
        gone = scene.cluster.stop(scene.broker.address)
        await asyncio.sleep(3)
        scene.cluster.servers[scene.broker.address if scene.cluster.brokers else "b0:10911"] = gone
        await asyncio.sleep(30)
        assert len(scene.brokers[0].pops.hidden) == 1
        scene.brokers[0].topics[TOPIC] = [[], []]
        await asyncio.sleep(10)
        asked = len(scene.cluster.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
        await asyncio.sleep(100)
        assert len(scene.cluster.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == asked
        assert not engine._extender.is_kept(message)
        with pytest.raises(StaleHandle, match="offset is illegal") as caught:
            await engine.ack([message])
        assert (caught.value.handle, caught.value.code) == (message.pop_handle, 208)
        await engine.close()

    run(main)


def test_loop_acknowledges_handled_messages() -> None:
    async def main(scene: Scene) -> None:
        scene.send(*(b"%d" % number for number in range(5)))
        engine = await scene.started()
        batch = await engine.receive_kept(32)
        engine.note_handled(batch[0])
        await engine.extend(batch[1], invisible_s=300)
        engine.note_handled(batch[1])
        await engine.ack([batch[2]])
        engine.note_handled(batch[2])
        await engine.let_go([batch[3]])
        await engine.settle(rest=batch[4:])
        assert sorted(scene.broker.pops.acked) == sorted([batch[0].body_bytes, batch[2].body_bytes])
        assert await receive(engine, wait_s=0) == batch[4:], "unseen messages go to the next"
        again, *_ = await receive(engine, wait_s=61)
        assert again.body_bytes in (batch[3].body_bytes, batch[4].body_bytes)
        engine.keep([again])
        engine.note_handled(again)
        await engine.close()
        assert again.body_bytes in scene.broker.pops.acked, "closing acknowledges what was handled"

    run(main)


def test_messages_of_a_left_loop_are_redelivered_to_others() -> None:
    """The one that it was at, and those that it has not seen, though its consumer asks for nothing any more."""

    async def main(scene: Scene) -> None:
        scene.send(b"0", b"1", b"2")
        engine = await scene.started(invisible_time_ms=10_000)
        handout = await engine.hand_out(engine.receive_kept(32), thread=1, is_loop=True)
        handout.is_received = True
        handout.current = handout.messages.popleft()
        handout.is_left = True
        await engine.leave(handout)
        left_s = scene.loop.time()
        other = await scene.started()
        found = await receive(other, wait_s=15)
        while len(found) < 3:
            found += await receive(other, wait_s=15)
        assert bodies(found) == [b"0", b"1", b"2"]
        assert scene.loop.time() - left_s < 30
        await other.close()
        await engine.close()

    run(main)


def test_expired_messages_are_not_handed_out() -> None:
    async def main(scene: Scene) -> None:
        scene.send(b"0")
        engine = await scene.started()
        messages = await receive(engine, invisible_s=10)
        engine.keep(messages)
        await engine.settle(rest=messages)
        await asyncio.sleep(11)
        (message,) = await receive(engine, wait_s=1)
        assert message.reconsume_times == 1
        await engine.close()

    run(main)


def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        waiting = asyncio.ensure_future(receive(engine, wait_s=15))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        scene.send(b"0")
        await asyncio.sleep(1)
        assert bodies(await receive(engine, wait_s=0)) == [b"0"]
        (asked,) = [one for one in scene.cluster.asked(RequestCode.POP_MESSAGE) if one.fields["pollTime"] != "0"]
        assert (asked.fields["queueId"], asked.fields["bornTime"], asked.fields["order"]) == ("-1", "0", "false")
        await engine.close()

    run(main)


def test_a_receive_that_is_cancelled_while_it_asks_for_more_loses_nothing() -> None:
    async def main(scene: Scene) -> None:
        scene.send(*(b"%d" % number for number in range(40)))
        engine = await scene.started()
        waiting = asyncio.ensure_future(receive(engine, 40))
        while not scene.cluster.asked(RequestCode.POP_MESSAGE)[1:]:
            await asyncio.sleep(0.0005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(1)
        assert len(await receive(engine, 40, wait_s=0)) == 40
        await engine.close()

    run(main)


def test_a_receive_ends_with_the_consumer() -> None:
    async def main(scene: Scene) -> None:
        engine = await scene.started()
        waiting = asyncio.ensure_future(receive(engine, wait_s=15))
        await asyncio.sleep(1)
        await engine.close()
        assert await waiting == []
        assert engine.state is ServiceState.SHUTDOWN_ALREADY
        await engine.close()
        with pytest.raises(ClientStateError, match="closed"):
            await receive(engine)

    run(main)
    run(main, brokers=2)


def test_tags_are_looked_at_again_here() -> None:
    async def main(scene: Scene) -> None:
        scene.send(b"0", tags="a")
        scene.send(b"1", tags="b")
        engine = await scene.started("a")
        assert bodies(await receive(engine)) == [b"0"]
        await asyncio.sleep(1)
        assert scene.broker.pops.acked == [b"1"], "a message with only the hash of a wanted tag is acknowledged"
        asked = scene.cluster.asked(RequestCode.POP_MESSAGE)[0]
        assert (asked.fields["exp"], asked.fields["expType"]) == ("a", "TAG")
        await engine.close()

    run(main)


def test_brokers_without_batch_acks_get_single_acks() -> None:
    async def main(scene: Scene) -> None:
        scene.broker.unknown_codes = frozenset({RequestCode.BATCH_ACK_MESSAGE})
        scene.send(b"0", b"1")
        engine = await scene.started()
        await engine.ack(await receive(engine))
        assert len(scene.broker.pops.acked) == 2
        scene.send(b"2", b"3")
        await engine.ack(await receive(engine))
        assert len(scene.broker.pops.acked) == 4
        assert len(scene.cluster.asked(RequestCode.BATCH_ACK_MESSAGE)) == 1
        await engine.close()

    run(main)


def test_a_broker_that_holds_too_many_requests_is_asked_again() -> None:
    async def main(scene: Scene) -> None:
        scene.broker.pops.is_full = True
        engine = await scene.started()
        assert await receive(engine, wait_s=10) == []
        assert 5 < len(scene.cluster.asked(RequestCode.POP_MESSAGE)) < 20
        await engine.close()

    run(main)


def test_brokers_that_know_no_pop() -> None:
    async def main(scene: Scene) -> None:
        scene.broker.unknown_codes = frozenset({RequestCode.POP_MESSAGE})
        engine = await scene.started()
        with pytest.raises(BrokerError, match="know no POP") as caught:
            await receive(engine)
        assert caught.value.code == 3
        await engine.close()

    run(main)


def test_answers_that_make_no_sense() -> None:
    async def main(scene: Scene) -> None:
        scene.broker.pops.spoil = lambda fields: fields.update(msgOffsetInfo="0 0 0;0 0 1")
        scene.send(b"0")
        engine = await scene.started()
        with pytest.raises(MalformedCommand, match="twice"):
            await receive(engine)
        await engine.close()

    run(main)


def test_wrong_calls() -> None:
    async def main(scene: Scene) -> None:
        engine = scene.engine()
        with pytest.raises(ClientStateError, match="not started"):
            await receive(engine)
        await engine.start()
        with pytest.raises(ClientStateError, match="subscribe"):
            await receive(engine)
        await engine.subscribe("Nowhere", None)
        with pytest.raises(RouteNotFound, match="Nowhere"):
            await receive(engine)
        await engine.unsubscribe("Nowhere")
        await engine.subscribe(TOPIC, None)
        wrong: list[dict[str, Any]] = [
            *({"most": value} for value in (0, -1, 1.5, True, "3", math.nan, 1_025)),
            *({"invisible_s": value} for value in (0, 50_000, math.nan, math.inf, "3", True)),
            *({"wait_s": value} for value in (-1, math.nan, math.inf, "3")),
        ]
        for values in wrong:
            with pytest.raises(InvalidArgument, match="max_messages" if "most" in values else next(iter(values))):
                await receive(engine, **values)
        with pytest.raises(ClientStateError):
            await engine.start()
        taken = scene.engine(client_ip="10.0.0.1", instance_name="one")
        again = scene.engine(client_ip="10.0.0.1", instance_name="one")
        await taken.start()
        with pytest.raises(GroupTaken):
            await again.start()
        await taken.close()
        await again.start()
        await again.close()
        await engine.close()

    run(main)
