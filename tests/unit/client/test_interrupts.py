"""Checks: exceptions of a signal handler in blocking calls, again and again, lose no message and stop nobody."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import cometmq.admin
from cometmq.client import OutgoingMessage
from cometmq.client.producer import Producer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.testing import Cluster, cluster

LIMIT_S = 60
COUNT = 100
FIRST: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)


class Interrupted(Exception):
    """The exception that the handler raises."""


def _ignore(unraisable: sys.UnraisableHookArgs, /) -> None:
    """Ignore an exception that nobody can catch."""


class Signals:
    """Raise in whatever this thread does, over and over, but in the code of this file itself.

    An exception in pytest's hook for unraisable ones would fail the test, which ignores those anyway: meanwhile a hook
    of this file stands in for it.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s

    def __enter__(self) -> None:
        self._hook_before = sys.unraisablehook
        sys.unraisablehook = _ignore
        self._before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self._period_s, self._period_s)

    @staticmethod
    def _raise(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename != __file__:
            raise Interrupted

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        sys.unraisablehook = self._hook_before


def interrupted(call: Callable[[], object]) -> None:
    """Make a call that may be interrupted."""
    try:
        call()
    except Interrupted:
        return


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def fill(servers: Cluster, topic: str) -> set[bytes]:
    bodies = {b"%d" % number for number in range(COUNT)}
    with Producer("makers", name_servers=servers.name_server_address) as producer:
        producer.send_batch([OutgoingMessage(body, topic=topic) for body in sorted(bodies)])
    return bodies


@pytest.mark.parametrize("form", ["receive", "loop"])
def test_interrupted_simple_consumer_loses_no_message(servers: Cluster, form: str) -> None:
    """Messages that an interrupted call had taken come with the next one, not after their invisible time."""
    topic = f"simple-{form}"
    bodies = fill(servers, topic)
    seen: set[bytes] = set()
    settings: Any = {"name_servers": servers.name_server_address, "invisible_time_ms": 600_000, **FIRST}
    with SimpleConsumer(f"g_{topic}", **settings) as consumer:
        consumer.subscribe(topic)
        end_s, interrupts = time.monotonic() + LIMIT_S, 0
        with Signals(0.003):
            # Also when all came without one: the next call waits for a message, and is interrupted.
            while seen != bodies or interrupts == 0:
                assert time.monotonic() < end_s, f"{len(seen)} of {COUNT} came, after {interrupts} interrupts"
                try:
                    if form == "receive":
                        for message in consumer.receive(8, wait_s=1):
                            seen |= {message.body_bytes}
                    else:
                        for message in consumer:
                            seen |= {message.body_bytes}
                            if seen == bodies and interrupts > 0:
                                break
                except Interrupted:
                    interrupts += 1


def test_interrupted_producer_goes_on(servers: Cluster) -> None:
    """A send that returns is stored, whatever came before it."""
    sent: set[bytes] = set()
    with Producer("p_interrupted", name_servers=servers.name_server_address) as producer:
        producer.send("sends", b"first")
        end_s, interrupts = time.monotonic() + LIMIT_S, 0
        with Signals(0.003):
            while len(sent) < COUNT:
                assert time.monotonic() < end_s, f"{len(sent)} of {COUNT} were sent, after {interrupts} interrupts"
                body = b"%d" % len(sent)
                try:
                    producer.send("sends", body)
                    sent |= {body}
                except Interrupted:
                    interrupts += 1
        producer.send("sends", b"last")
    found: set[bytes] = set()
    with SimpleConsumer("g_sends", name_servers=servers.name_server_address, **FIRST) as consumer:
        consumer.subscribe("sends")
        end_s = time.monotonic() + LIMIT_S
        while not sent <= found:
            assert time.monotonic() < end_s
            for message in consumer.receive(32, wait_s=1):
                found |= {message.body_bytes}


def test_interrupted_calls_of_a_push_consumer_leave_it_whole(servers: Cluster) -> None:
    bodies = fill(servers, "pushed")
    seen: set[bytes] = set()
    consumer = PushConsumer("g_pushed", name_servers=servers.name_server_address, **FIRST)
    consumer.subscribe("pushed")
    consumer.listener(lambda message: seen.add(message.body_bytes))
    consumer.start()
    end_s = time.monotonic() + LIMIT_S
    with Signals(0.003):
        while seen != bodies:
            assert time.monotonic() < end_s, f"{len(seen)} of {COUNT} came"
            for call in (consumer.suspend, consumer.resume, lambda: consumer.progress("pushed")):
                interrupted(call)
        for _ in range(20):
            interrupted(consumer.close)
    consumer.close()
    with cometmq.admin.connect(namesrv=servers.name_server_address) as admin:
        assert admin.groups.members("g_pushed") is None


class Target:
    """An object that weak references point to."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_the_callback_of_a_weak_reference_ends_run(
    servers: Cluster, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The interpreter drops the handler's exception there, and run() ends all the same."""
    consumer = PushConsumer(f"g_weak_{number}", name_servers=servers.name_server_address, listener=lambda _: None)
    flag, waits = consumer._ended, [0]
    wait = flag.wait
    dropped: list[type[BaseException]] = []

    def interrupted_wait(timeout_s: float) -> bool:
        waits[0] += 1
        assert waits[0] < 3, "run() continues"
        if waits[0] == 1:
            target = Target()
            reference = weakref.ref(target, lambda _: signal.raise_signal(number))
            del target
            assert reference() is None
        return wait(timeout_s)

    monkeypatch.setattr(flag, "wait", interrupted_wait)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))
    usual = signal.getsignal(number)
    consumer.run()
    assert dropped == [KeyboardInterrupt]
    assert signal.getsignal(number) is usual
