"""Checks: users' consumers are thin: each call is one of an engine's, and both surfaces have the same calls."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any
from unittest.mock import create_autospec

import pytest

import cometmq.aio.pull
import cometmq.aio.push
import cometmq.aio.simple
import cometmq.client.pull_consumer
import cometmq.client.push_consumer
import cometmq.client.simple_consumer
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.push.push_engine import PushEngine
from cometmq.remoting.bodies.message_queue import MessageQueue

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)
Call = tuple[str, tuple[Any, ...], dict[str, Any]]
TAGGED = {"expression_type": "TAG"}

PUSH: list[tuple[Call, Call]] = [
    (("subscribe", ("T", "a"), {}), ("subscribe", ("T", "a"), TAGGED)),
    (("unsubscribe", ("T",), {}), ("unsubscribe", ("T",), {})),
    (("progress", ("T",), {}), ("progress", ("T",), {})),
    (("suspend", (), {}), ("suspend", (), {})),
    (("resume", (), {}), ("resume", (), {})),
    (("close", (), {"timeout_ms": 7}), ("close", (), {"timeout_ms": 7})),
]
PULL: list[tuple[Call, Call]] = [
    (("subscribe", ("T", "a"), {}), ("subscribe", ("T", "a"), TAGGED)),
    (("unsubscribe", ("T",), {}), ("unsubscribe", ("T",), {})),
    (("assign", ([QUEUE], "a"), {}), ("assign", ([QUEUE], "a"), TAGGED)),
    (("max_offset", (QUEUE,), {}), ("max_offset", (QUEUE,), {})),
]
CASES = [
    pytest.param(surface, kind, call, engine_call, id=f"{surface}-{kind}-{call[0]}")
    for surface in ("client", "aio")
    for kind, calls in (("push", PUSH), ("pull", PULL))
    for call, engine_call in calls
]
CLASSES: dict[tuple[str, str], Any] = {
    ("client", "push"): cometmq.client.push_consumer.PushConsumer,
    ("client", "pull"): cometmq.client.pull_consumer.PullConsumer,
    ("client", "simple"): cometmq.client.simple_consumer.SimpleConsumer,
    ("aio", "push"): cometmq.aio.push.PushConsumer,
    ("aio", "pull"): cometmq.aio.pull.PullConsumer,
    ("aio", "simple"): cometmq.aio.simple.SimpleConsumer,
}
ENGINES = {"push": PushEngine, "pull": PullEngine}


@pytest.mark.parametrize(("surface", "kind", "call", "engine_call"), CASES)
def test_each_call_is_one_of_the_engine(surface: str, kind: str, call: Call, engine_call: Call) -> None:
    """Promise 48: the facade hands its arguments on, and returns what the engine returns."""
    consumer = CLASSES[surface, kind]("g", name_servers="127.0.0.1:1")
    engine = create_autospec(ENGINES[kind], instance=True, spec_set=False)
    engine.state, engine.is_running, engine.is_in_listener = ServiceState.RUNNING, True, False
    setattr(consumer, "_puller" if (surface, kind) == ("aio", "pull") else "_engine", engine)
    name, arguments, options = call
    method, expected, expected_options = engine_call
    result = {"T": 1}
    getattr(engine, method).return_value = result
    returned = getattr(consumer, name)(*arguments, **options)
    if inspect.isawaitable(returned):
        returned = asyncio.run(_of(returned))
    elif surface == "client":
        consumer._loop.run(_nothing())  # calls that were handed to the loop are done after this
    (made,) = [one for one in engine.method_calls if one[0] == method]
    assert (made.args, made.kwargs) == (expected, expected_options)
    assert [one[0] for one in engine.method_calls] == [method]
    assert returned in (result, None, consumer)
    if name == "progress":
        assert returned is result


async def _of(awaitable: Any) -> Any:
    return await awaitable


async def _nothing() -> None:
    return


@pytest.mark.parametrize("kind", ["push", "pull", "simple"])
def test_both_surfaces_have_the_same_calls(kind: str) -> None:
    """Promise 48: both have the same methods, with the same arguments."""
    blocking, awaited = (_signatures(CLASSES[surface, kind]) for surface in ("client", "aio"))
    only_here = {"run"} if kind == "push" else set()  # the whole life of a service, signals included
    assert set(blocking) - set(awaited) == only_here
    assert set(awaited) - set(blocking) == set()
    for name in awaited:
        assert awaited[name] == blocking[name], name


def _signatures(kind: Any) -> dict[str, list[tuple[str, Any]]]:
    return {
        name: [(each.name, each.default) for each in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }
