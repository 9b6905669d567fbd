"""Checks: the hooks that a user gives see every request and answer, and each way a request fails has its own error."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cometmq._engine import PullRequest, SendRequest
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.errors import ConnectionLost, Error, HookFailed, InvalidArgument, RequestTimeout, SendFailed
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.hub import Hub
from cometmq.testing import Cluster, cluster
from support.peer import Peer

LIMIT_S = 30
LONG_MS = 30_000
FIRST: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}


class Signing:
    """A hook that adds a field to each request and notes the codes that it saw."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.answers: list[int] = []

    def before_request(self, address: str, request: Command) -> Command:
        self.requests.append(request.code)
        return replace(request, fields={**request.fields, "Signature": f"{address}:{request.code}"})

    def after_answer(self, address: str, request: Command, answer: Command) -> None:
        assert request.fields["Signature"] == f"{address}:{request.code}"
        self.answers.append(request.code)


class Failing(Signing):
    """A hook that raises before the requests of one code, or after their answers."""

    def __init__(self, *, before: int = -1, after: int = -1) -> None:
        super().__init__()
        self.before, self.after = before, after

    def before_request(self, address: str, request: Command) -> Command:
        if request.code == self.before:
            raise ValueError("no key to sign with")
        return super().before_request(address, request)

    def after_answer(self, address: str, request: Command, answer: Command) -> None:
        if request.code == self.after:
            raise ValueError("not signed by the server")
        super().after_answer(address, request, answer)


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def test_each_client_takes_hooks(servers: Cluster) -> None:
    """Promise 45: the requests of producers and of push, pull and simple consumers, name servers' and brokers'."""
    at = servers.name_server_address
    hooks = [Signing() for _ in range(4)]
    with Producer("p-hooks", name_servers=at, rpc_hooks=[hooks[0]]) as producer:
        producer.send("Hooks", b"1")
    came = threading.Event()
    push = PushConsumer("g-hooks-push", name_servers=at, listener=lambda _: came.set(), rpc_hooks=[hooks[1]], **FIRST)
    with push.subscribe("Hooks"):
        assert came.wait(LIMIT_S)
    with PullConsumer("g-hooks-pull", name_servers=at, rpc_hooks=[hooks[2]], **FIRST) as pull:
        pull.subscribe("Hooks")
        assert pull.poll(LIMIT_S * 1000)
    with SimpleConsumer("g-hooks-simple", name_servers=at, rpc_hooks=[hooks[3]], **FIRST) as simple:
        simple.subscribe("Hooks")
        for message in simple.receive(wait_s=LIMIT_S):
            simple.ack(message)
    own = ({RequestCode.SEND_MESSAGE_V2}, {RequestCode.PULL_MESSAGE}, {RequestCode.LITE_PULL_MESSAGE})
    for hook, codes in zip(hooks, (*own, {RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE}), strict=True):
        expected = {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT, *codes}
        assert expected <= set(hook.requests)
        assert expected - {RequestCode.HEART_BEAT} <= set(hook.answers)


def test_hook_that_fails_before_a_send_keeps_it_from_being_sent(servers: Cluster) -> None:
    hook = Failing(before=RequestCode.SEND_MESSAGE_V2)
    with Producer("p-before", name_servers=servers.name_server_address, rpc_hooks=[hook]) as producer:
        with pytest.raises((SendFailed, HookFailed)) as caught:
            producer.send("HooksBefore", b"1")
        assert "no key to sign with" in str(caught.value)
        hook.before = -1
        assert producer.send("HooksBefore", b"2").queue_offset == 0, "the first was not stored"


def test_hook_that_fails_after_the_answer_fails_the_send(servers: Cluster) -> None:
    hook = Failing(after=RequestCode.SEND_MESSAGE_V2)
    with Producer("p-after", name_servers=servers.name_server_address, rpc_hooks=[hook]) as producer:
        with pytest.raises((SendFailed, HookFailed), match="not signed by the server"):
            producer.send("HooksAfter", b"1", timeout_ms=LONG_MS)
        future = producer.send_async("HooksAfter", b"2")
        assert isinstance(future.exception(LIMIT_S), (SendFailed, HookFailed))


@pytest.mark.parametrize("returned", [None, {}])
def test_hook_that_returns_no_request_fails_it(servers: Cluster, returned: Any) -> None:
    class Forgetful(Signing):
        def before_request(self, address: str, request: Command) -> Command:
            return returned if request.code == RequestCode.SEND_MESSAGE_V2 else super().before_request(address, request)

    with (
        Producer("p-none", name_servers=servers.name_server_address, rpc_hooks=[Signing(), Forgetful()]) as producer,
        pytest.raises((SendFailed, HookFailed), match=r"before_request returned .*: return the request"),
    ):
        producer.send("HooksNone", b"1", timeout_ms=LONG_MS)


def test_hooks_are_checked() -> None:
    for wrong in ([print], Signing(), [Signing(), None]):
        with pytest.raises(InvalidArgument, match="rpc_hooks"):
            PullConsumer("g", name_servers="127.0.0.1:1", rpc_hooks=wrong).start()  # type: ignore[arg-type]


# --- Each failure alone, on each way of a request ---------------------------------------------------------------------


def send(hub: Hub, address: str, timeout_ms: int) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    request = SendRequest(
        code=310,
        producer_group="P",
        topic="T",
        queue_id=0,
        properties=b"",
        body=b"x",
        born_timestamp_ms=1_700_000_000_000,
    )
    hub.send(address, request, future.set_result, timeout_ms=timeout_ms)
    return future


def pull(hub: Hub, address: str, timeout_ms: int) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    request = PullRequest(
        group="G",
        topic="T",
        queue_id=0,
        queue_offset=0,
        max_messages=1,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_ms=1_000,
        sub_version=0,
        max_bytes=100,
    )
    hub.pull(address, request, future.set_result, timeout_ms=timeout_ms)
    return future


async def invoke(hub: Hub, address: str, timeout_ms: int) -> Command | Error:
    try:
        return await hub.invoke(address, Command(code=1), timeout_ms=timeout_ms)
    except Error as error:
        return error


WAYS: list[Callable[[Hub, str, int], Any]] = [send, pull, invoke]


def silent(peer: Peer, connection: Any, request: Command) -> bytes | None:
    return None


def outcomes(
    peer: Peer,
    *,
    timeout_ms: int,
    before: Callable[[], None] = lambda: None,
    ways: list[Callable[[Hub, str, int], Any]] = WAYS,
    **options: Any,
) -> list[Any]:
    """Return the outcome of one request on each way."""

    async def run() -> list[Any]:
        hub = Hub(**options)
        try:
            waiting = [asyncio.ensure_future(way(hub, peer.address, timeout_ms)) for way in ways]
            await asyncio.to_thread(before)
            return list(await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_S))
        finally:
            await hub.close()

    return asyncio.run(run())


@pytest.mark.parametrize("hooked", [False, True])
def test_lost_connection_and_missing_answer_are_distinct(hooked: bool) -> None:
    """Promise 45: with and without hooks."""
    options = {"hooks": [Signing()]} if hooked else {}
    with Peer(silent) as peer:

        def hang_up() -> None:
            peer.wait_for(lambda: len(peer.requests) == len(WAYS))
            peer.connections[0].shutdown(2)

        lost = outcomes(peer, timeout_ms=LONG_MS, before=hang_up, **options)
        assert [type(error) for error in lost] == [ConnectionLost] * 3
        # One by one: a connection on which nothing came until a time-out is closed under the others.
        late = [outcomes(peer, timeout_ms=50, ways=[way], **options)[0] for way in WAYS]
        assert [type(error) for error in late] == [RequestTimeout] * 3


def test_hook_failures_are_distinct() -> None:
    """Promise 45: one error of its own on each way, with the hook's exception as its cause."""

    def answers(peer: Peer, connection: Any, request: Command) -> bytes | None:
        return request.response(0, fields={"msgId": "id", "queueId": "0", "queueOffset": "5"}).encode()

    class Always(Failing):
        def before_request(self, address: str, request: Command) -> Command:
            self.before = request.code if self.before == 0 else -1
            self.after = request.code if self.after == 0 else -1
            try:
                return super().before_request(address, request)
            finally:
                self.before = 0 if self.before >= 0 else -1

        def after_answer(self, address: str, request: Command, answer: Command) -> None:
            raise ValueError("not signed by the server")

    with Peer(answers) as peer:
        unsent = outcomes(peer, timeout_ms=LONG_MS, hooks=[Always(before=0)])
        assert not peer.requests
        refused = outcomes(peer, timeout_ms=LONG_MS, hooks=[Always()])
        assert len(peer.requests) == len(WAYS)
    for failures in (unsent, refused):
        assert [type(error) for error in failures] == [HookFailed] * 3
        assert [type(error.__cause__) for error in failures] == [ValueError] * 3


def test_time_that_hooks_take_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 45: a request whose time is over before it is sent is not sent."""
    passed_ms = [0]
    steady_ms = time.monotonic_ns() // 1_000_000
    monkeypatch.setattr("cometmq.remoting.hub._now_ms", lambda: steady_ms + passed_ms[0])

    class Slow(Signing):
        def before_request(self, address: str, request: Command) -> Command:
            passed_ms[0] += 20_000
            return super().before_request(address, request)

    with Peer(silent) as peer:
        late = outcomes(peer, timeout_ms=15_000, hooks=[Slow()])
        assert [type(error) for error in late] == [RequestTimeout] * 3
        assert all("hooks took its 15000 ms" in str(error) for error in late)
        assert not peer.requests
