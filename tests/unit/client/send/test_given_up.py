"""Checks: sends that ``close(timeout_ms=)`` gives up end with an error, and none is sent afterwards.

The producer shares its client instance with another one, which keeps the connections open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from cometmq.client.instance.hooks import Interceptor, SendContext
from cometmq.client.send.outgoing import OutgoingMessage, SendStatus
from cometmq.client.send.send_engine import SendEngine
from cometmq.errors import ClientStateError, ConnectionLost, SendFailed
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.producers import played
from support.scripted_network import ScriptedNetwork, route_of
from support.sends import send_answer
from support.virtual_loop import VirtualLoop

CLOSED = "producer group leaving was closed after 10 ms, before"
OUTAGE_S = 60.0


def message(topic: str = "t", **given: Any) -> OutgoingMessage:
    return OutgoingMessage(b"body", topic=topic, **given)


def given_up(
    use: Callable[[SendEngine, ScriptedNetwork], Awaitable[None]],
    *,
    interceptors: tuple[Interceptor, ...] = (),
    routes: Any = None,
    **options: Any,
) -> ScriptedNetwork:
    """Let a producer begin sends on an instance that another one keeps, and close it after 10 ms.

    The name server and the brokers answer nothing meanwhile, and all of it afterwards.
    """

    async def both(other: SendEngine, network: ScriptedNetwork, loop: object) -> None:
        settings = replace(other.settings, group="leaving", **options)
        engine = await SendEngine.open(settings, interceptors=interceptors, network_factory=network.factory)
        assert engine.instance is other.instance
        network.is_held = True
        await use(engine, network)
        await engine.close(timeout_ms=10)
        sent = len(network.sent)
        network.is_held = False
        network.let_go()
        await asyncio.sleep(OUTAGE_S)
        assert len(network.sent) == sent
        assert not engine.attempts.under_way

    return played(both, routes=routes)


def hangs(network: ScriptedNetwork) -> None:
    """Let the name server answer when the brokers do."""
    invoke = network.invoke

    async def late(address: str, request: Any, *, timeout_ms: int) -> Any:
        if network.is_held:
            gate = asyncio.Event()
            network.held.append(gate.set)
            await gate.wait()
        return await invoke(address, request, timeout_ms=timeout_ms)

    network.invoke = late  # type: ignore[method-assign]


@pytest.mark.parametrize("knows_the_way", [False, True])
def test_send_in_flight_is_uncertain_and_not_tried_again(knows_the_way: bool) -> None:
    sends: list[Any] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        if knows_the_way:
            await engine.attempts.routes.find("t")
        network.script.append(ConnectionLost("gone"))
        sends.append(engine.send(message()))
        while not network.sent:
            await asyncio.sleep(0.001)

    network = given_up(use)
    doubt = f"sent once.*may be stored all the same: {CLOSED} the broker answered"
    with pytest.raises(SendFailed, match=doubt) as error:
        sends[0].result()
    assert (error.value.is_uncertain, error.value.broker_names) == (True, tuple(network.brokers))


def test_send_that_waits_for_its_route_is_not_sent() -> None:
    sends: list[Any] = []
    routes = {"t": route_of("a")}

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        hangs(network)
        sends.extend(engine.send(message()) for _ in range(3))
        sends.append(engine.send(message(), selector=lambda queues, arg: pytest.fail("asked for a queue")))

    assert not given_up(use, routes=routes).sent
    for send in sends:
        with pytest.raises(ClientStateError, match=f"{CLOSED} the message was sent"):
            send.result()


@pytest.mark.parametrize("is_sent", [False, True])
def test_send_that_is_given_up_in_the_middle_of_its_attempt_does_not_count_as_unsent(is_sent: bool) -> None:
    """The sender's thread is anywhere in its attempt when the loop gives the send up."""
    sends: list[Any] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        await engine.attempts.routes.find("t")
        place, name = (network, "send") if is_sent else (engine.attempts, "_clock")
        call = getattr(place, name)

        def interrupted(*given: Any, **options: Any) -> Any:
            if engine.attempts.under_way:
                setattr(place, name, call)
                engine.attempts.give_up("producer group leaving was closed after 10 ms")
            return call(*given, **options)

        setattr(place, name, interrupted)
        sends.append(engine.send(message(), queue=MessageQueue(topic="t", broker_name="a", queue_id=0)))

    sent = given_up(use, routes={"t": route_of("a")}).sent
    assert len(sent) == is_sent
    expected = "the broker answered" if is_sent else "the message was sent"
    with pytest.raises(SendFailed if is_sent else ClientStateError, match=f"{CLOSED} {expected}"):
        sends[0].result()


def test_name_server_that_fails_later_changes_nothing() -> None:
    sends: list[Any] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        hangs(network)
        network.routes.clear()
        sends.append(engine.send(message()))

    given_up(use)
    with pytest.raises(ClientStateError, match=CLOSED):
        sends[0].result()


def test_message_stored_less_safely_keeps_its_result() -> None:
    sends: list[Any] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        await engine.attempts.routes.find("t")
        network.script.append(send_answer(code=10))
        sends.append(engine.send(message(), is_awaited=True))
        network.let_go()
        assert len(network.sent) == 2

    given_up(use, retry_another_broker_when_not_store_ok=True)
    assert sends[0].result().status is SendStatus.FLUSH_DISK_TIMEOUT


def test_batch_and_its_messages_are_given_up() -> None:
    sends: list[Any] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        await engine.attempts.routes.find("t")
        network.script.append(ConnectionLost("gone"))
        sends.extend(engine.send(message()) for _ in range(3))

    assert len(given_up(use, accumulate=True).sent) == 1
    assert len({id(send.exception()) for send in sends}) == 1
    assert CLOSED in str(sends[0].exception())


def test_batch_that_waits_for_room_is_not_sent() -> None:
    sends: list[Any] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        await engine.attempts.routes.find("t")
        sends.extend(engine.send(message(delay_level=1)) for _ in range(10))
        sends.append(engine.send(message()))
        while len(engine.attempts.under_way) < len(sends):
            await asyncio.sleep(0.001)

    limits: dict[str, Any] = {"enable_backpressure_for_async_mode": True, "back_pressure_for_async_send_num": 10}
    assert len(given_up(use, accumulate=True, **limits).sent) == len(sends) - 1
    with pytest.raises(ClientStateError, match=f"{CLOSED} the message was sent"):
        sends[-1].result()


def test_interceptors_see_a_given_up_send_once() -> None:
    seen: list[SendContext] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        engine.send(message())

    given_up(use, interceptors=(Interceptor(after_send=seen.append),))
    assert [type(context.error) for context in seen] == [SendFailed]


def test_requests_are_given_up() -> None:
    futures: list[Any] = []

    async def use(engine: SendEngine, network: ScriptedNetwork) -> None:
        stored = engine.request(message(), timeout_ms=60_000)
        while not network.sent:
            await asyncio.sleep(0.001)
        network.is_held = False
        network.let_go()
        network.is_held = True
        futures.extend([stored, engine.request(message(), timeout_ms=60_000)])
        while len(network.sent) < len(futures):
            await asyncio.sleep(0.001)
        hangs(network)
        futures.append(engine.request(message("elsewhere"), timeout_ms=60_000))

    given_up(use, routes={"t": route_of("a"), "elsewhere": route_of("b")})
    texts = [str(future.exception(0)) for future in futures]
    assert [text.partition(CLOSED)[2] for text in texts] == [
        " the reply came",
        " the broker answered",
        " the reply came",
    ], texts


def test_close_without_a_limit_gives_up_nothing() -> None:
    async def both(other: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.answer_ms = 2_000
        engine = await SendEngine.open(replace(other.settings, group="leaving"), network_factory=network.factory)
        send = engine.send(message())
        await engine.close()
        assert send.result().status is SendStatus.SEND_OK

    played(both)
