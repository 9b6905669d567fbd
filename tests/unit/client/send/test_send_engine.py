"""Checks: the way of a message through its attempts, with brokers that answer as the test says."""

from __future__ import annotations

import asyncio
import struct
import traceback
from typing import Any

import pytest

from cometmq._compression import decompress_body
from cometmq._engine import decode_properties
from cometmq.client.instance.hooks import Interceptor, SendContext
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.send.inner_producer import InnerProducer
from cometmq.client.send.outgoing import OutgoingMessage, SendStatus
from cometmq.client.send.queue_selection import queue_by_hash
from cometmq.client.send.send_engine import SendEngine
from cometmq.errors import (
    ClientStateError,
    ConnectionLost,
    ForkedClient,
    GroupTaken,
    InvalidArgument,
    InvalidTopic,
    LimitReached,
    MessageTooLarge,
    NotConnected,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from support.producers import played
from support.scripted_network import ScriptedNetwork, route_of
from support.sends import send_answer
from support.virtual_loop import VirtualLoop


def message(body: bytes = b"body", **given: Any) -> OutgoingMessage:
    return OutgoingMessage(body, **{"topic": "t", **given})


def test_send_equals_the_send_of_upstream() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        result = await engine.send(message(tags="T", keys="k", properties={"a": "b"}, flag=3))
        ((address, request, timeout_ms),) = network.sent
        assert address == f"{request.broker_name}:1"
        assert timeout_ms <= 3000
        assert (request.code, request.producer_group, request.topic) == (310, "g", "t")
        assert (request.default_topic, request.default_topic_queues) == ("TBW102", 4)
        assert (request.flag, request.sys_flag, request.batch, request.body) == (3, 0, False, b"body")
        assert request.born_timestamp_ms == loop.now_ms() or request.born_timestamp_ms < loop.now_ms()
        assert decode_properties(request.properties) == {
            "TAGS": "T",
            "KEYS": "k",
            "a": "b",
            "UNIQ_KEY": result.unique_id,
            "WAIT": "true",
        }
        assert (result.status, result.message_id) == (SendStatus.SEND_OK, result.unique_id)
        assert result.queue == MessageQueue(topic="t", broker_name=request.broker_name, queue_id=request.queue_id)

    network = played(use)
    # Heard of at the start and at the end, and the route asked for.
    codes = [code for _, code in network.asked]
    assert RequestCode.GET_ROUTEINFO_BY_TOPIC in codes
    assert RequestCode.UNREGISTER_CLIENT in codes


def test_queues_take_turns() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        for _ in range(12):
            await engine.send(message())
        places = [(request.broker_name, request.queue_id) for _, request, _ in network.sent]
        assert len(set(places)) == 6
        assert places[:6] == places[6:]

    played(use)


@pytest.mark.parametrize("code", [14, 1, 1500])
def test_a_waiting_send_goes_to_another_broker_after_a_refusal(code: int) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.extend([send_answer(code=code, remark="busy"), send_answer(code=code)])
        result = await engine.send(message(), is_awaited=True)
        assert result.attempts == 3
        assert all(one != other for one, other in zip(network.brokers, network.brokers[1:], strict=False))
        assert {request.properties for _, request, _ in network.sent} == {network.sent[0][1].properties}

    played(use)


def test_attempts_end() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.extend([send_answer(code=14, remark=f"no {at}") for at in range(3)])
        with pytest.raises(SendFailed, match=r"3 times.*no 2") as caught:
            await engine.send(message(), is_awaited=True)
        assert (caught.value.code, caught.value.topic, caught.value.is_uncertain) == (14, "t", False)
        assert list(caught.value.broker_names) == network.brokers
        network.script.append(send_answer(code=13, remark="illegal"))
        with pytest.raises(SendFailed, match=r"once.*illegal"):
            await engine.send(message(), is_awaited=True)

    played(use)


def test_a_send_that_does_not_wait_gets_a_refusal_at_once() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(code=14, remark="busy"))
        with pytest.raises(SendFailed, match="busy"):
            await engine.send(message())
        assert len(network.sent) == 1
        network.script.extend([ConnectionLost("gone"), RequestTimeout("late")])
        result = await engine.send(message())
        assert result.attempts == 3
        network.script.extend([ConnectionLost("gone")] * 3)
        with pytest.raises(SendFailed, match="may be stored") as caught:
            await engine.send(message())
        assert caught.value.is_uncertain
        assert caught.value.retriable
        network.script.extend([NotConnected("refused")] * 3)
        with pytest.raises(SendFailed, match="and failed: refused") as caught:
            await engine.send(message())
        assert (caught.value.is_uncertain, caught.value.retriable) == (False, True)

    played(use)


def test_the_time_is_that_of_all_attempts() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.answer_ms = 400
        network.script.extend([ConnectionLost("gone")] * 3)
        with pytest.raises(SendFailed, match="2 times"):
            await engine.send(message(), is_awaited=True, timeout_ms=700)
        assert [timeout_ms for _, _, timeout_ms in network.sent] == [700, 300]

    played(use)


def test_an_attempt_has_a_limit_of_its_own_while_others_are_left() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(ConnectionLost("gone"))
        await engine.send(message(), is_awaited=True)
        assert network.sent[0][2] == 500

    network = played(use, send_msg_max_timeout_per_request_ms=500, retry_times_when_send_failed=1)
    assert network.sent[1][2] > 2_000


@pytest.mark.parametrize("is_picky", [False, True])
def test_stored_but_not_as_safely(is_picky: bool) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(code=10))
        result = await engine.send(message(), is_awaited=True)
        assert result.status is (SendStatus.SEND_OK if is_picky else SendStatus.FLUSH_DISK_TIMEOUT)
        # A failure after it does not take back that it is stored.
        network.script.extend([send_answer(code=12), ConnectionLost("gone"), ConnectionLost("gone")])
        result = await engine.send(message(), is_awaited=True)
        assert result.status is SendStatus.FLUSH_SLAVE_TIMEOUT

    played(use, retry_another_broker_when_not_store_ok=is_picky)


def test_a_queue_that_was_asked_for_is_the_only_one() -> None:
    wanted = MessageQueue(topic="t", broker_name="b", queue_id=1)

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.extend([ConnectionLost("gone"), ConnectionLost("gone")])
        await engine.send(message(), queue=wanted)
        assert [(request.broker_name, request.queue_id) for _, request, _ in network.sent] == [("b", 1)] * 3
        network.script.append(send_answer(code=14))
        with pytest.raises(SendFailed, match="once"):
            await engine.send(message(), queue=wanted, is_awaited=True)
        with pytest.raises(InvalidArgument, match="goes to other"):
            engine.send(message(topic="other"), queue=wanted)

    played(use)


def test_selector_chooses_for_accumulating_producers() -> None:
    wanted = MessageQueue(topic="t", broker_name="b", queue_id=1)
    asked: list[object] = []

    def select(queues: object, arg: object) -> MessageQueue:
        asked.append(arg)
        return wanted

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        for number in range(5):
            await engine.send(message(), selector=select, arg=number)
        assert [(request.broker_name, request.queue_id) for _, request, _ in network.sent] == [("b", 1)] * 5
        assert asked == list(range(5))

    played(use, accumulate=True)


@pytest.mark.parametrize("choice", ["queue", "selector", "sharding key"])
def test_chosen_queue_is_kept_over_all_attempts(choice: str) -> None:
    """Also where the topic's other queues are known, from an earlier message."""
    wanted = MessageQueue(topic="t", broker_name="b", queue_id=1)
    given: dict[str, Any] = {"queue": wanted} if choice == "queue" else {}
    if choice == "selector":
        given["selector"] = lambda queues, _: wanted

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message())
        del network.sent[:]
        network.script.extend([ConnectionLost("gone"), ConnectionLost("gone")])
        await engine.send(message(sharding_key="k" if choice == "sharding key" else None), **given)
        assert len(network.sent) == 3
        assert len({(request.broker_name, request.queue_id) for _, request, _ in network.sent}) == 1

    played(use)


def test_sharding_keys_have_one_queue_on_the_fast_and_the_slow_path() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message())
        for number in range(20):
            key = f"key {number}"
            slow = (await engine.send(message(sharding_key=key), timeout_ms=2_000)).queue
            fast = (await engine.send_given("t", b"x", None, None, None, 0, key, None, None, None, None, False)).queue
            assert slow == fast == queue_by_hash(engine.attempts.routes.rings["t"].queues, key)

    played(use)


def test_selectors_and_sharding_keys_choose() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        result = await engine.send(message(), selector=lambda queues, arg: queues[arg], arg=4)
        assert (result.queue.broker_name, result.queue.queue_id) == ("c", 0)
        places = {(await engine.send(message(sharding_key="hello"))).queue for _ in range(4)}
        assert places == {MessageQueue(topic="t", broker_name="a", queue_id=99162322 % 6)} or len(places) == 1
        with pytest.raises(InvalidArgument, match="selector"):
            await engine.send(message(), selector=lambda queues, arg: None)
        with pytest.raises(ZeroDivisionError):
            await engine.send(message(), selector=lambda queues, arg: 1 // 0)
        with pytest.raises(InvalidArgument, match="several brokers"):
            await engine.send(message(queue_id=0))

    played(use)


def test_a_topic_that_is_not_there_is_made_after_the_template() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        result = await engine.send(message(topic="new"))
        assert result.queue.queue_id < 3
        assert network.sent[0][1].default_topic_queues == 3

    played(use, routes={"TBW102": route_of("a", queues=8)}, default_topic_queue_nums=3)


@pytest.mark.parametrize("key", ["k", None])
def test_sends_do_not_overtake_those_that_wait_for_the_route(key: str | None) -> None:
    """Another thread may send in the moment in which the route comes: promise of a sharding key, and of send_many."""

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        routes_changed, late = engine.routes_changed, []

        def come(topic: str, info: Any) -> None:
            routes_changed(topic, info)
            late.extend(engine.send(message(b"late %d" % at, sharding_key=key)) for at in range(2))

        engine.routes_changed = come  # type: ignore[method-assign]
        early = [engine.send(message(b"early %d" % at, sharding_key=key)) for at in range(3)]
        for future in early:
            await future
        assert len(late) >= 2
        for future in late:
            await future
        bodies = [request.body for _, request, _ in network.sent]
        assert bodies[:5] == [b"early 0", b"early 1", b"early 2", b"late 0", b"late 1"]
        await engine.send(message(b"last", sharding_key=key))
        assert network.sent[-1][1].body == b"last"

    played(use)


def test_all_waiters_get_the_error_of_an_unavailable_route() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        waiting = [engine.send(message(topic="nowhere")) for _ in range(3)]
        for future in waiting:
            with pytest.raises(RouteNotFound):
                await future
        assert network.sent == []

    played(use)


def test_no_route() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        with pytest.raises(RouteNotFound, match="topic nowhere, and no broker creates topics: check the name"):
            await engine.send(message(topic="nowhere"))
        with pytest.raises(RouteNotFound, match="permission"):
            await engine.send(message(topic="closed"))
        network.silent.add("ns:9876")
        with pytest.raises(ConnectionLost):
            await engine.send(message(topic="other"))

    played(use, routes={"closed": route_of("a", perm=4)})


def test_a_route_that_changes_is_followed() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message())
        network.routes["t"] = route_of("d")
        await engine.instance.refresh_routes()
        assert (await engine.send(message())).queue.broker_name == "d"

    played(use)


def test_brokers_that_fail_are_passed_over_when_asked_for() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(ConnectionLost("gone"))
        await engine.send(message(), is_awaited=True)
        bad = network.brokers[0]
        for _ in range(12):
            await engine.send(message())
        assert bad not in network.brokers[1:]
        assert not engine.attempts.faults.is_available(bad, now_ms=int(loop.time() * 1000))

    played(use, send_latency_enable=True)


def test_the_detector_asks_failed_brokers() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(ConnectionLost("gone"))
        await engine.send(message(), is_awaited=True)
        bad = network.brokers[0]
        assert not engine.attempts.faults.is_reachable(bad)
        before = len(network.asked)
        reached = loop.create_future()
        loop.call_later(4, reached.set_result, None)
        await reached
        assert (f"{bad}:1", RequestCode.GET_MAX_OFFSET) in network.asked[before:]
        assert engine.attempts.faults.is_reachable(bad)

    played(use, send_latency_enable=True, start_detector_enable=True)


def test_long_bodies_are_compressed() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message(b"x" * 4_095))
        await engine.send(message(b"x" * 4_096))
        plain, packed = (request for _, request, _ in network.sent)
        assert (plain.sys_flag, len(plain.body)) == (0, 4_095)
        assert packed.sys_flag == 769
        assert decompress_body(packed.sys_flag, packed.body) == b"x" * 4_096

    played(use)


def test_a_batch() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        result = await engine.send_batch([message(b"one", tags="a"), message(b"two", keys="k")])
        ((_, request, _),) = network.sent
        assert (request.code, request.batch, request.sys_flag) == (320, True, 0)
        ids = result.unique_id.split(",")
        assert len(set(ids)) == 2
        own = decode_properties(request.properties)
        assert own.keys() == {"UNIQ_KEY", "WAIT"}
        assert own["UNIQ_KEY"] not in ids
        size, _, _, _, length = struct.unpack_from(">iiiii", request.body)
        first = decode_properties(request.body[22 + length : size])
        assert first == {"TAGS": "a", "UNIQ_KEY": ids[0], "WAIT": "true"}

    played(use)


@pytest.mark.parametrize(
    ("messages", "kind", "match"),
    [
        ([message(), message(topic="u")], InvalidArgument, "t, u"),
        ([], InvalidArgument, "a batch needs at least one message"),
        ([message(), message(wait_stored=False)], InvalidArgument, "wait_stored"),
        ([message(delay_level=1)], InvalidArgument, "held back"),
        ([message(topic="%RETRY%g")], InvalidTopic, "no batches"),
        ([message(b"x" * 600), message(b"x" * 600)], MessageTooLarge, "split"),
    ],
)
def test_invalid_batches_are_rejected(messages: list[OutgoingMessage], kind: type[Exception], match: str) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        with pytest.raises(kind, match=match):
            engine.send_batch(messages)

    assert played(use, max_message_size_bytes=1_000).sent == []


def test_one_way() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        engine.send_oneway(message(b"first"))
        await engine.drain()
        engine.send_oneway(message(b"second"))
        assert [request.body for _, request in network.oneway_sends] == [b"first", b"second"]

    assert played(use).sent == []


def test_interceptors_see_a_message_before_and_after() -> None:
    seen: list[tuple[str, SendContext]] = []
    watcher = Interceptor(
        before_send=lambda context: seen.append(("before", context)),
        after_send=lambda context: seen.append(("after", context)),
    )

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        result = await engine.send(message(tags="T"))
        assert [when for when, _ in seen] == ["before", "after"]
        context = seen[0][1]
        assert context is seen[1][1]
        assert (context.group, context.topic, context.messages[0].tags) == ("g", "t", "T")
        assert (context.queue, context.result, context.error) == (result.queue, result, None)
        assert context.address == f"{result.queue.broker_name}:1"
        assert 0.9 < context.elapsed_ms < 100
        network.script.append(send_answer(code=13))
        with pytest.raises(SendFailed):
            await engine.send(message())
        assert isinstance(seen[-1][1].error, SendFailed)

    played(use, interceptors=(watcher,))


def test_back_pressure() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message())
        network.is_held = True
        under_way = [engine.send(message()) for _ in range(10)]
        with pytest.raises(LimitReached):
            await engine.send(message())
        network.let_go()
        for one in under_way:
            await one
        network.is_held = False
        await engine.send(message())

    played(use, enable_backpressure_for_async_mode=True, back_pressure_for_async_send_num=10)


@pytest.mark.parametrize("is_made", [True, False])
def test_the_first_of_a_topic_that_is_not_there_goes_alone(is_made: bool) -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.is_held = True
        if not is_made:
            network.script.append(send_answer(code=16, remark="no"))
        sends = [engine.send(message(b"%d" % number, topic="fresh")) for number in range(20)]
        await asyncio.sleep(1)
        assert [request.body for _, request, _ in network.sent] == [b"0"]
        network.is_held = False
        network.let_go()
        for number, one in enumerate(sends):
            if number or is_made:
                assert (await one).status.name == "SEND_OK"
        assert isinstance(sends[0].exception(), SendFailed) is not is_made
        assert [request.body for _, request, _ in network.sent] == [b"%d" % number for number in range(20)]

    played(use, routes={"TBW102": route_of("a")})


def test_a_batch_waits_for_room_until_its_deadline() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message())
        network.is_held = True
        # A message with a sharding key goes alone.
        under_way = [engine.send(message(sharding_key="k")) for _ in range(10)]
        batched = [engine.send(message()) for _ in range(2)]
        began_s = loop.time()
        for one in batched:
            with pytest.raises(LimitReached, match="within 3000 ms"):
                await one
        assert loop.time() - began_s == pytest.approx(3, abs=0.1)
        batched = [engine.send(message()) for _ in range(2)]
        await asyncio.sleep(1)
        assert not any(one.done() for one in batched)
        sent = len(network.sent)
        network.is_held = False
        network.let_go()
        for one in [*under_way, *batched]:
            assert (await one).status.name == "SEND_OK"
        assert len(network.sent) == sent + 1
        assert "10 messages" in repr(engine.attempts)

    played(use, accumulate=True, enable_backpressure_for_async_mode=True, back_pressure_for_async_send_num=10)


def test_an_error_that_many_sends_share_does_not_grow() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        sends = [engine.send(message(topic="nowhere")) for _ in range(3)]
        errors: list[BaseException] = []
        depths: list[int] = []
        for one in [*sends, *sends]:
            with pytest.raises(RouteNotFound) as raised:
                await one
            errors.append(raised.value)
            depths.append(sum(1 for _ in traceback.walk_tb(raised.value.__traceback__)))
        assert len({*map(id, errors)}) == 1
        assert len(depths) == 6
        assert len({*depths}) == 1, depths

    played(use)


def test_a_namespace_is_on_the_wire_alone() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message())
        assert (network.sent[0][1].topic, network.sent[0][1].producer_group) == ("N%t", "N%g")

    played(use, routes={"N%t": route_of("a")}, namespace="N")


def test_a_second_producer_of_the_group_and_one_that_is_closed() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        with pytest.raises(GroupTaken):
            await SendEngine(engine.instance, engine.settings).start()
        with pytest.raises(ClientStateError):
            await engine.start()
        network.is_held = True
        pending = engine.send(message(), queue=MessageQueue(topic="t", broker_name="a", queue_id=0))
        await engine.instance.update_route("t")
        loop.call_later(1, network.let_go)
        await engine.close()
        assert pending.done()
        assert engine.state is ServiceState.SHUTDOWN_ALREADY
        with pytest.raises(ClientStateError, match="closed"):
            engine.send(message())
        engine.disown()
        with pytest.raises(ForkedClient, match="fork"):
            engine.send(message())

    played(use)


def test_messages_sent_back_keep_their_properties() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        # A tag that others have stored goes back as it is, whoever may name it.
        properties = {"TAGS": "O||P", "UNIQ_KEY": "AB", "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "2", "DELAY": "5"}
        await InnerProducer(engine.instance).send(
            "%RETRY%g_order", b"step-7", properties=properties, flag=1, timeout_ms=5_000
        )
        ((_, request, _),) = network.sent
        assert (request.producer_group, request.topic) == ("CLIENT_INNER_PRODUCER", "%RETRY%g_order")
        assert (request.reconsume_times, request.max_reconsume_times, request.flag) == (3, 2, 1)
        assert decode_properties(request.properties) == {**properties, "WAIT": "true"}

    played(use, routes={"%RETRY%g_order": route_of("a")})


def test_a_broker_that_is_not_known_is_asked_for_once() -> None:
    gone = MessageQueue(topic="t", broker_name="z", queue_id=0)

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        with pytest.raises(SendFailed, match="no name server knows a master of broker z"):
            await engine.send(message(), queue=gone)
        network.routes["t"] = route_of("a", "z")
        assert (await engine.send(message(), queue=gone)).queue == gone

    played(use)


def test_messages_that_follow_closely_become_a_batch() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        began_s = loop.time()
        futures = [engine.send(message(b"%d" % at)) for at in range(5)]
        alone = engine.send(message(b"late", delay_level=1))
        results = [await future for future in futures]
        assert 0.010 <= loop.time() - began_s < 0.5
        await alone
        batches = [request for _, request, _ in network.sent if request.batch]
        assert [request.code for request in batches] == [320]
        assert [one.queue_offset for one in results] == [0, 1, 2, 3, 4]
        assert len({one.unique_id for one in results}) == 5
        # A flushed batch does not wait for its time.
        waiting = engine.send(message(b"x"))
        began_s = loop.time()
        await engine.drain()
        assert waiting.done()
        assert loop.time() - began_s < 0.009
        # A long batch goes at once.
        long = [engine.send(message(b"x" * 12_000)) for _ in range(3)]
        assert sum(request.batch for _, request, _ in network.sent) == 3
        await long[0]

    played(use, accumulate=True)
