"""Checks: the steps after an attempt to send, the caller's result, and the future that brings it."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys
import threading
from typing import Any

import pytest

from cometmq.client.send.outgoing import SendStatus
from cometmq.client.send.producer_settings import RETRY_RESPONSE_CODES
from cometmq.client.send.sending import Failure, Next, SendFuture, SendPolicy, SendResult, arrival, judge, send_failed
from cometmq.errors import (
    BrokerError,
    BrokerNotFound,
    ConnectionLost,
    Error,
    InvalidArgument,
    LimitReached,
    MalformedCommand,
    NotConnected,
    RequestTimeout,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.sends import send_answer

BLOCKING = SendPolicy(attempts=3, retry_codes=frozenset(RETRY_RESPONSE_CODES), retries_limits=True)
ASYNCHRONOUS = SendPolicy(attempts=3)


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205, 1500])
def test_refusals_after_which_another_broker_is_tried(code: int) -> None:
    refused = send_answer(code=code)
    assert judge(BLOCKING, refused, attempts=1, left_ms=9) == (Next.AGAIN, Failure(True, False), False)
    assert judge(BLOCKING, refused, attempts=3, left_ms=9).next is Next.FAIL
    assert judge(BLOCKING, refused, attempts=1, left_ms=0).next is Next.FAIL
    assert judge(ASYNCHRONOUS, refused, attempts=1, left_ms=9).next is Next.FAIL


@pytest.mark.parametrize("code", [13, 215, 12345])
def test_refusals_that_end_a_send(code: int) -> None:
    assert judge(BLOCKING, send_answer(code=code), attempts=1, left_ms=9).next is Next.FAIL


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_but_not_as_safely(code: int) -> None:
    picky = SendPolicy(attempts=2, retries_not_stored_ok=True)
    assert judge(BLOCKING, send_answer(code=code), attempts=1, left_ms=9) == (Next.DONE, Failure(False, True), True)
    assert judge(picky, send_answer(code=code), attempts=1, left_ms=9).next is Next.AGAIN
    assert judge(picky, send_answer(code=code), attempts=2, left_ms=9).next is Next.DONE


def test_stored() -> None:
    assert judge(BLOCKING, send_answer(), attempts=3, left_ms=-1) == (Next.DONE, Failure(False, True), False)


@pytest.mark.parametrize("policy", [BLOCKING, ASYNCHRONOUS])
@pytest.mark.parametrize("error", [ConnectionLost("gone"), RequestTimeout("late")])
def test_no_answer(policy: SendPolicy, error: Error) -> None:
    assert judge(policy, error, attempts=1, left_ms=9) == (Next.AGAIN, Failure(True, True), True)
    assert judge(policy, error, attempts=1, left_ms=9, probes=True).failure == Failure(True, False)
    assert judge(policy, error, attempts=3, left_ms=9).next is Next.FAIL
    assert judge(policy, error, attempts=1, left_ms=0).next is Next.FAIL


def test_other_errors() -> None:
    missing = BrokerNotFound("no broker-a")
    assert judge(ASYNCHRONOUS, missing, attempts=1, left_ms=9) == (Next.AGAIN, Failure(False, True), False)
    assert judge(BLOCKING, NotConnected("refused"), attempts=1, left_ms=9) == (Next.AGAIN, Failure(True, True), False)
    full = LimitReached("full")
    assert judge(BLOCKING, full, attempts=1, left_ms=9).next is Next.AGAIN
    assert judge(ASYNCHRONOUS, full, attempts=1, left_ms=9) == (Next.FAIL, Failure(True, True), False)
    assert judge(BLOCKING, MalformedCommand("?"), attempts=1, left_ms=9)[::2] == (Next.FAIL, True)
    assert judge(BLOCKING, InvalidArgument("?"), attempts=1, left_ms=9)[::2] == (Next.FAIL, False)


def test_an_attempt_has_a_limit_while_others_are_left() -> None:
    policy = SendPolicy(attempts=2, attempt_timeout_ms=500)
    assert policy.timeout_ms(3000, attempts=0) == 500
    assert policy.timeout_ms(300, attempts=0) == 300
    assert policy.timeout_ms(2500, attempts=1) == 2500
    assert BLOCKING.timeout_ms(3000, attempts=0) == 3000


def test_error_lists_the_attempts() -> None:
    cause = BrokerError("disk full", code=14, address="h:1")
    error = send_failed("t", cause, brokers=["a", "b", "a"], attempts=3, elapsed_ms=12.4, is_uncertain=True)
    assert "topic t was sent 3 times in 12 ms, brokers a, b, and failed; it may be stored all the same" in str(error)
    assert "disk full" in str(error)
    assert (error.code, error.broker_names, error.is_uncertain, error.retriable) == (14, ("a", "b", "a"), True, True)
    assert error.__cause__ is cause
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.topic, str(again)) == (14, "t", str(error))
    alone = send_failed("t", ConnectionLost("x"), brokers=[], attempts=1, elapsed_ms=0, is_uncertain=False)
    assert "sent once" in str(alone)
    assert "may be stored" not in str(alone)


def result(**answer: Any) -> SendResult:
    return SendResult(send_answer(**answer), MessageQueue(topic="t", broker_name="a", queue_id=3), "AB")


def test_result_has_the_fields_of_the_answer() -> None:
    one = result(queue_id=3, queue_offset=7, message_id="7F00", transaction_id="AB", region_id="r", recall_handle="h")
    assert (one.status, one.message_id, one.unique_id, one.offset_message_id) == (
        SendStatus.SEND_OK,
        "AB",
        "AB",
        "7F00",
    )
    assert (one.topic, one.queue.broker_name, one.queue.queue_id, one.queue_offset) == ("t", "a", 3, 7)
    assert (one.transaction_id, one.region_id, one.recall_handle) == ("AB", "r", "h")
    assert repr(one) == "SendResult(SEND_OK, t/a/3 at 7, AB)"
    other = result(code=10, queue_id=5, batch_unique_id="XY")
    assert (other.status, other.queue.queue_id, other.message_id) == (SendStatus.FLUSH_DISK_TIMEOUT, 5, "XY")
    assert other.region_id == "DefaultRegion"


def test_a_future_waits_in_any_thread() -> None:
    future = SendFuture()
    got: list[SendResult] = []
    threads = [threading.Thread(target=lambda: got.append(future.result(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    one = result()
    future.set_result(one)
    for thread in threads:
        thread.join(30)
    assert got == [one] * 4
    assert future.done()
    assert future.exception() is None


def test_a_future_brings_an_error() -> None:
    future = SendFuture()
    with pytest.raises(RequestTimeout, match="goes on"):
        future.result(0)
    future.set_error(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost, match="gone"):
        future.result()
    assert isinstance(future.exception(), ConnectionLost)


def test_callbacks_are_called_once_each() -> None:
    future = SendFuture()
    called: list[str] = []
    future.add_done_callback(lambda one: called.append("first"))
    future.add_done_callback(lambda one: called.append(str(one.done())))
    future.set_result(result())
    future.add_done_callback(lambda one: called.append("late"))
    assert called == ["first", "True", "late"]


def test_send_may_end_after_the_wait_for_it_was_cancelled() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, problem: problems.append(problem))
        send = SendFuture()
        arrived = arrival(send, loop)
        arrived.cancel()
        send.set_result(result(queue_offset=1))
        for _ in range(3):  # the callback goes to the loop, and runs there
            await asyncio.sleep(0)
        assert arrived.cancelled()
        assert problems == []

    asyncio.run(main())


def test_a_future_is_awaited() -> None:
    async def main() -> None:
        future, failing, ready = SendFuture(), SendFuture(), SendFuture()
        ready.set_result(result(queue_offset=1))
        loop = asyncio.get_running_loop()
        loop.call_soon(future.set_result, result(queue_offset=2))
        threading.Thread(target=failing.set_error, args=(ConnectionLost("gone"),)).start()
        assert (await ready).queue_offset == 1
        assert (await future).queue_offset == 2
        with pytest.raises(ConnectionLost):
            await failing

    asyncio.run(main())


def test_a_callback_that_raises_is_logged_and_does_not_stop_others() -> None:
    async def main() -> list[str]:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
        future = SendFuture()
        future.add_done_callback(lambda one: 1 // 0)
        future.add_done_callback(lambda one: told.append("second"))
        future.set_result(result())
        return told

    assert asyncio.run(main()) == ["a callback of a send raised", "second"]


def test_a_callback_that_raises_outside_of_a_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    future = SendFuture()
    future.add_done_callback(lambda one: 1 // 0)
    future.add_done_callback(lambda one: told.append("second"))
    future.set_result(result())
    assert told == ["second"]
    assert "a callback of a send raised" in caplog.text


def test_a_callback_that_ends_the_program_is_the_last() -> None:
    told: list[str] = []
    future = SendFuture()
    future.add_done_callback(lambda one: sys.exit(3))
    future.add_done_callback(lambda one: told.append("second"))
    with pytest.raises(SystemExit):
        future.set_result(result())
    assert told == ["second"]


def test_callbacks_that_come_while_memory_is_collected_are_kept() -> None:
    """Where the first one's list is made, Python may collect memory, and then let other threads run."""
    future = SendFuture()
    told: list[str] = []

    def collecting(phase: str, info: dict[str, int]) -> None:
        if not told:
            told.append("other came")
            future.add_done_callback(lambda one: told.append("other"))

    threshold = gc.get_threshold()
    add, own = future.add_done_callback, lambda one: told.append("own")
    gc.disable()  # else a collection just now would make the next one come later
    no_lists_to_reuse = [[] for _ in range(200)]  # type: ignore[var-annotated]
    gc.callbacks.append(collecting)
    try:
        gc.set_threshold(1)
        gc.enable()
        add(own)
    finally:
        gc.enable()
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
    future.set_result(result())
    assert (len(no_lists_to_reuse), sorted(told)) == (200, ["other", "other came", "own"])
