"""Checks: a producer's plain messages take the fast path where they may, and are what the slow path makes of them."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from cometmq._engine import Gathered, PendingSend, SendFuture, SendRequest, decode_properties
from cometmq.client.instance.hooks import Interceptor, SendContext
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.send.sending_many import SendWindow
from cometmq.errors import (
    ClientStateError,
    ConnectionLost,
    ForkedClient,
    InvalidArgument,
    InvalidTopic,
    MessageTooLarge,
    RequestTimeout,
    SendFailed,
)
from support import producers
from support.producers import Use
from support.scripted_network import ScriptedNetwork, route_of
from support.sends import send_answer
from support.virtual_loop import VirtualLoop


def played(use: Use, **given: Any) -> ScriptedNetwork:
    """Run a producer that knows the way to topic t."""
    return producers.played(use, knows_the_way=True, **given)


def send(engine: SendEngine, topic: Any, body: Any = None, *, is_awaited: bool = False, **given: Any) -> SendFuture:
    """Send as a producer does."""
    options = dict.fromkeys(("tags", "keys", "properties", "sharding_key", "queue", "selector", "arg", "timeout_ms"))
    return engine.send_given(topic, body, **(options | {"delay_level": 0} | given), is_awaited=is_awaited)


def took_short_way(engine: SendEngine, topic: str = "t") -> bool:
    return topic in engine._lanes


def test_fast_path_writes_the_bytes_of_the_slow_path() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def shape(request: SendRequest) -> tuple[object, ...]:
        named = decode_properties(request.properties)
        assert len(named.pop("UNIQ_KEY")) == 32
        fixed = (request.code, request.producer_group, request.topic, request.default_topic, request.unit_mode)
        own = (request.default_topic_queues, request.sys_flag, request.flag, request.reconsume_times, request.batch)
        return (*fixed, *own, request.max_reconsume_times, request.body, tuple(named.items()))

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        for _ in range(50):
            body = chance.randbytes(chance.choice([1, 10, 4_095, 4_096, 6_000]))
            given: dict[str, Any] = {name: chance.choice([None, "", "ä", "x" * 600]) for name in ("tags", "keys")}
            given["properties"] = chance.choice([None, {}, {"a": "b", "c": ""}, {"INNER_MULTI_DISPATCH": "q"}])
            given["sharding_key"] = chance.choice([None, "", "one", "two"])
            await send(engine, "t", body, **given)
            # A send with a time limit takes the slow path.
            await send(engine, "t", body, **given, timeout_ms=3_000)
            short, long = (request for _, request, _ in network.sent[-2:])
            assert shape(short) == shape(long)
            assert given["sharding_key"] is None or short.queue_id == long.queue_id
        assert took_short_way(engine)

    played(use)


def test_queues_take_turns_on_both_ways() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        for at in range(12):
            await (send(engine, "t", b"x") if at % 2 else engine.send(OutgoingMessage(b"x", topic="t", flag=1)))
        places = [(request.broker_name, request.queue_id) for _, request, _ in network.sent]
        assert len(set(places)) == 6
        assert places[:6] == places[6:]

    played(use)


def test_attempts_that_fail_go_on_as_on_the_long_way() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.extend([ConnectionLost("gone"), ConnectionLost("gone")])
        future = send(engine, "t", b"x")
        assert type(future) is PendingSend
        result = await future
        assert (result.attempts, len(network.brokers)) == (3, 3)
        assert all(one != other for one, other in zip(network.brokers, network.brokers[1:], strict=False))
        assert {decode_properties(one.properties)["UNIQ_KEY"] for _, one, _ in network.sent} == {result.unique_id}
        network.script.append(send_answer(code=14, remark="busy"))
        with pytest.raises(SendFailed, match=r"once.*busy"):
            await send(engine, "t", b"x")
        network.script.append(send_answer(code=14, remark="busy"))
        assert (await send(engine, "t", b"x", is_awaited=True)).attempts == 2
        network.script.append(send_answer(code=10))
        assert (await send(engine, "t", b"x")).status.name == "FLUSH_DISK_TIMEOUT"
        assert not engine.attempts.under_way

    played(use)


def test_a_route_that_changes_is_followed() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await send(engine, "t", b"x")
        network.routes["t"] = route_of("d")
        await engine.instance.refresh_routes()
        assert not took_short_way(engine)
        assert (await send(engine, "t", b"x")).queue.broker_name == "d"
        assert took_short_way(engine)

    played(use)


def test_a_route_that_goes_while_a_send_begins_is_asked_for_again() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        request, unique_id = engine._maker.single(OutgoingMessage(b"x"), "t")
        begun = engine.attempts.new(request, unique_id, is_awaited=False)
        # As when the loop takes a new route between the first look at the queues and their use.
        engine.attempts.routes.rings.clear()
        engine.attempts.first_attempt(begun)
        assert (await begun).queue.topic == "t"
        assert network.sent[0][1].body == b"x"

    played(use)


def test_a_sharding_key_keeps_its_queue_over_all_attempts() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.extend([ConnectionLost("gone"), ConnectionLost("gone")])
        await send(engine, "t", b"x", sharding_key="k")
        assert len({(request.broker_name, request.queue_id) for _, request, _ in network.sent}) == 1
        network.script.append(send_answer(code=14))
        with pytest.raises(SendFailed, match="once"):
            await send(engine, "t", b"x", sharding_key="k", is_awaited=True)
        assert took_short_way(engine)

    played(use)


def test_a_namespace_is_on_the_wire_alone() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await send(engine, "t", b"x")
        assert took_short_way(engine)
        assert (network.sent[0][1].topic, network.sent[0][1].producer_group) == ("N%t", "N%g")

    played(use, routes={"N%t": route_of("a")}, namespace="N")


@pytest.mark.parametrize(
    "options",
    [
        {"enable_backpressure_for_async_mode": True},
        {"send_latency_enable": True},
        {"vip_channel_enabled": True},
    ],
)
def test_watched_messages_take_the_slow_path(options: dict[str, Any]) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await send(engine, "t", b"x")
        assert not took_short_way(engine)

    assert len(played(use, **options).sent) == 1


@pytest.mark.parametrize("accumulate", [False, True])
def test_interceptors_see_every_message(accumulate: bool) -> None:
    seen: list[SendContext] = []

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        futures = [send(engine, "t", b"%d" % at) for at in range(3)]
        results = [await one for one in futures]
        assert not took_short_way(engine)
        assert [one.body for context in seen for one in context.messages] == [b"0", b"1", b"2"]
        assert [one for context in seen for one in context.unique_ids] == [one.unique_id for one in results]
        assert all(context.result is not None for context in seen)
        assert len(seen) == (1 if accumulate else 3)

    played(use, interceptors=(Interceptor(after_send=seen.append),), accumulate=accumulate)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": "t", "body": None}, InvalidArgument, "has a body"),
    ({"topic": "t", "body": "text"}, InvalidArgument, "encode a text"),
    ({"topic": "t", "body": b""}, InvalidArgument, "empty"),
    ({"topic": "t", "body": b"x" * 1_001}, MessageTooLarge, "1,001 bytes"),
    ({"topic": "t", "body": b"x", "tags": "a\x01b"}, InvalidArgument, "divide"),
    ({"topic": "t", "body": b"x", "tags": "a||b"}, InvalidArgument, "no reader could ask for this one"),
    ({"topic": "t", "body": b"x", "tags": "a "}, InvalidArgument, "blanks"),
    ({"topic": "t", "body": b"x", "keys": ["a", "b"]}, InvalidArgument, "several keys are one text"),
    ({"topic": 5, "body": b"x"}, InvalidArgument, "a topic is text, not int"),
    ({"topic": "t", "body": b"x", "queue": 3}, InvalidArgument, "give a MessageQueue"),
    ({"topic": "t", "body": b"x", "keys": "\ud800"}, InvalidArgument, "UTF-8"),
    ({"topic": "no good", "body": b"x"}, InvalidTopic, "no good"),
    ({"topic": "SCHEDULE_TOPIC_XXXX", "body": b"x"}, InvalidTopic, "broker's own"),
    ({"topic": "", "body": b"x"}, InvalidTopic, "empty"),
]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("given", "kind", "match"), BAD)
def test_bad_input_is_a_typed_error(given: dict[str, Any], kind: type[Exception], match: str, accumulate: bool) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await send(engine, "t", b"x")
        network.sent.clear()
        with pytest.raises(kind, match=match):
            send(engine, **given)

    assert played(use, max_message_size_bytes=1_000, accumulate=accumulate).sent == []


def test_closed_or_forked_producer_rejects_messages() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await send(engine, "t", b"x")
        await engine.close()
        with pytest.raises(ClientStateError, match="closed"):
            send(engine, "t", b"x")
        engine.disown()
        with pytest.raises(ForkedClient):
            send(engine, "t", b"x")

    assert len(played(use).sent) == 1


def test_plain_messages_are_gathered() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        began_s = loop.time()
        futures = [send(engine, "t", b"%d" % at, tags="T", keys="k") for at in range(5)]
        assert {type(one) for one in futures} == {Gathered}
        # One that must go the slow path goes into the same batch.
        futures.append(engine.send(OutgoingMessage(b"5", "T", flag=7, topic="t")))
        results = [await one for one in futures]
        assert loop.time() - began_s < 0.020
        ((_, request, _),) = network.sent
        assert (request.code, request.batch) == (320, True)
        assert [one.queue_offset for one in results] == [0, 1, 2, 3, 4, 5]
        assert len({one.unique_id for one in results}) == 6
        # One timer for all, which is renewed.
        for at in range(3):
            await send(engine, "t", b"later", tags=str(at))
        assert len(network.sent) == 4
        # Flushed messages do not wait, and the timer finds nothing.
        waiting = send(engine, "t", b"x")
        began_s = loop.time()
        await engine.drain()
        assert waiting.done()
        assert loop.time() - began_s < 0.009

    played(use, accumulate=True)


def test_gathered_messages_are_sent_again_together() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(ConnectionLost("gone"))
        futures = [send(engine, "t", b"%d" % at) for at in range(3)]
        results = [await one for one in futures]
        assert [(one.attempts, one.queue_offset) for one in results] == [(2, 0), (2, 1), (2, 2)]
        assert network.sent[0][1].body == network.sent[1][1].body
        network.script.extend([ConnectionLost("gone")] * 3)
        futures = [send(engine, "t", b"%d" % at) for at in range(3)]
        for one in futures:
            with pytest.raises(SendFailed, match="3 times"):
                await one

    played(use, accumulate=True)


def test_a_queue_of_another_topic_is_refused_before_anything_is_gathered() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        queue = (await send(engine, "t", b"x")).queue
        good = send(engine, "t", b"x", queue=queue)
        with pytest.raises(InvalidArgument, match="the queue is of topic t, and the message goes to u"):
            send(engine, "u", b"x", queue=queue)
        assert (await good).queue == queue

    played(use, accumulate=True)


def test_a_batch_that_fails_reports_it_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        made = engine._maker.of_records

        def of_records(topic: str, records: bytes, *, wait_stored: bool) -> SendRequest:
            if b"bad" in records:
                raise MemoryError
            return made(topic, records, wait_stored=wait_stored)

        monkeypatch.setattr(engine._maker, "of_records", of_records)
        bad, good = send(engine, "t", b"bad", tags="a"), send(engine, "t", b"good", tags="b")
        with pytest.raises(MemoryError):
            await bad
        assert (await good).status.name == "SEND_OK"
        assert (await send(engine, "t", b"good")).status.name == "SEND_OK"

    played(use, accumulate=True)


@pytest.mark.parametrize("how_far", ["not begun", "made", "sent"])
def test_a_batch_stopped_by_ctrl_c_reports_it(how_far: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        future = send(engine, "t", b"x")
        assert engine._accumulation is not None
        (pending,) = engine._accumulation.take_all()

        def interrupted(*given: Any, **named: Any) -> None:
            raise KeyboardInterrupt

        if how_far != "not begun":
            where: tuple[Any, str] = (engine._maker, "of_records") if how_far == "made" else (network, "send")
            monkeypatch.setattr(*where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.attempts.ship(pending)
            assert not engine.attempts.under_way
            monkeypatch.undo()
        engine.attempts.was_interrupted(pending)
        await asyncio.sleep(0)
        if how_far == "not begun":
            assert (await future).queue_offset == 0
            return
        began_s = loop.time()
        await engine.drain()
        with pytest.raises(RequestTimeout if how_far == "made" else SendFailed, match="was interrupted") as raised:
            await future
        assert isinstance(raised.value, SendFailed) is (how_far == "sent")
        assert loop.time() - began_s == pytest.approx(0 if how_far == "made" else 3, abs=0.1)
        # An answer that comes all the same ends nothing twice.
        pending.future(send_answer())
        assert future.exception() is raised.value

    played(use, accumulate=True)


@pytest.mark.parametrize("options", [{}, {"enable_backpressure_for_async_mode": True}])
def test_a_send_that_ctrl_c_has_ended_is_not_waited_for(options: dict[str, Any]) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        def interrupted(queues: Any, arg: object) -> Any:
            raise KeyboardInterrupt

        before = repr(engine.attempts._pressure)
        with pytest.raises(KeyboardInterrupt):
            send(engine, "t", b"x", selector=interrupted)
        assert not engine.attempts.under_way
        assert repr(engine.attempts._pressure) == before
        await engine.drain()

    assert played(use, **options).sent == []


def test_ctrl_c_leaves_no_line_that_nobody_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.routes["u"] = route_of("a")

        def interrupted(*given: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(engine, "u", b"x")
        assert (await asyncio.wait_for(send(engine, "u", b"y"), 60)).topic == "u"

    assert [request.body for _, request, _ in played(use).sent] == [b"y"]


def test_a_selector_that_ends_the_program_holds_up_nobody_behind_it() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.routes["u"] = route_of("a")

        def leaving(queues: Any, arg: object) -> Any:
            # SystemExit would end this test's own loop, too.
            raise GeneratorExit

        first, second = send(engine, "u", b"x", selector=leaving), send(engine, "u", b"y")
        assert (await asyncio.wait_for(second, 60)).topic == "u"
        assert isinstance(first.exception(), GeneratorExit)
        assert (await send(engine, "u", b"z")).topic == "u"

    played(use)


def test_a_fork_waits_for_nothing_of_its_parent() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.is_held = True
        future = send(engine, "t", b"x")
        engine.attempts.is_forked = True
        with pytest.raises(ForkedClient):
            future.result()
        engine.attempts.is_forked = False

    played(use)


def test_batches_are_retried_by_the_policy_of_their_waiters() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(code=14))
        futures = [send(engine, "t", b"0"), send(engine, "t", b"1", is_awaited=True)]
        assert [(await one).attempts for one in futures] == [2, 2]

    played(use, accumulate=True)


def test_many_in_a_window() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        window = SendWindow(engine, topic="t", under_way=4)
        for at in range(4):
            assert window.due() == []
            window.send(b"%d" % at if at % 2 else OutgoingMessage(b"%d" % at))
        assert window.due() == list(window.begun)[:2]
        window.forget(2)
        assert window.due() == []
        assert repr(window) == "SendWindow(2 of 4)"
        assert [request.body for _, request, _ in network.sent] == [b"0", b"1", b"2", b"3"]
        with pytest.raises(InvalidArgument, match="under_way is 0"):
            SendWindow(engine, topic="t", under_way=0)
        with pytest.raises(InvalidArgument, match="bodies of a topic"):
            SendWindow(engine, topic=None, under_way=4).send(b"x")
        bad: Any = 7
        with pytest.raises(InvalidArgument, match="bytes, not int"):
            window.send(bad)

    played(use)


def test_a_message_says_where_or_the_sender_does() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(OutgoingMessage(b"x", topic="t"))
        await engine.send(OutgoingMessage(b"x"), topic="t")
        await engine.send(OutgoingMessage(b"x", topic="t"), topic="t")
        with pytest.raises(InvalidArgument, match="more than one: t, u"):
            engine.send(OutgoingMessage(b"x", topic="u"), topic="t")
        with pytest.raises(InvalidArgument, match="the message has no topic"):
            engine.send(OutgoingMessage(b"x"))
        engine.send_oneway(OutgoingMessage(b"once", topic="t"))
        assert [request.body for _, request in network.oneway_sends] == [b"once"]
        assert not engine.attempts.under_way

    assert len(played(use).sent) == 3


def test_awaited_on_its_own_loop_and_on_another() -> None:
    future = SendFuture()
    woken: list[str] = []

    async def wait(name: str) -> None:
        future_result: Any = await future
        woken.append(f"{name} {future_result}")

    async def main() -> None:
        other = threading.Thread(target=lambda: asyncio.run(wait("other")))
        other.start()
        tasks = [asyncio.create_task(wait("own")) for _ in range(2)]
        await asyncio.sleep(0)
        future.set_result("done")
        await asyncio.gather(*tasks)
        await asyncio.get_running_loop().run_in_executor(None, other.join)

    asyncio.run(main())
    assert sorted(woken) == ["other done", "own done", "own done"]
