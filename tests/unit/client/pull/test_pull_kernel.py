"""Checks: whom a pull is sent to, what it says, and what its answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq._engine import PullAnswer, PullRequest
from cometmq.client.group.subscriptions import make_subscription
from cometmq.client.pull.pull_kernel import PullKernel, PullResult
from cometmq.client.pull.pull_policy import PullStatus, pull_flags
from cometmq.errors import BrokerError, BrokerNotFound, CorruptRecord, Error, InvalidArgument, RequestTimeout
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import ResponseCode

_QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=3)


class _Instance:
    """Brokers, and an answer to every pull."""

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {0: "m:1", 1: "s:1"}
        self.after_update: dict[int, str] = {}
        self.broker_versions: dict[str, int] = {}
        self.answer: PullAnswer | Error = PullAnswer(code=19, next_begin_offset=5, min_offset=1, max_offset=9)
        self.answers: list[PullAnswer | Error] = []
        """Given before ``answer``, one by one."""
        self.sent: list[tuple[str, PullRequest, int]] = []
        self.network = SimpleNamespace(pull=self._pull)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def broker_address(
        self, broker_name: str, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool] | None:
        if not self.addresses:
            return None
        chosen = broker_id if broker_id in self.addresses else min(self.addresses)
        return self.addresses[chosen], chosen != 0

    async def update_route(self, topic: str, *, must_answer: bool = False) -> bool:
        assert topic == "t"
        self.addresses = self.after_update
        return True

    def _pull(self, address: str, request: PullRequest, on_answer: Callable[[Any], None], *, timeout_ms: int) -> None:
        self.sent.append((address, request, timeout_ms))
        asyncio.get_running_loop().call_soon(on_answer, self.answers.pop(0) if self.answers else self.answer)


def _pull(instance: _Instance, kernel: PullKernel, *, flags: int = 0, expression_type: str = "TAG") -> PullResult:
    subscription = make_subscription("t", "a || b", expression_type=expression_type, now_ms=77)
    return asyncio.run(
        kernel.pull(
            _QUEUE,
            subscription,
            group="g",
            offset=4,
            max_messages=32,
            max_bytes=1000,
            sys_flag=flags,
            suspend_timeout_ms=15_000,
            timeout_ms=30_000,
            commit_offset=3,
            sub_version=9,
        )
    )


@pytest.fixture
def instance() -> _Instance:
    return _Instance()


@pytest.fixture
def kernel(instance: _Instance) -> PullKernel:
    return PullKernel(instance)  # type: ignore[arg-type]


def test_fields_of_a_pull(instance: _Instance, kernel: PullKernel) -> None:
    """Promises 12, 67."""
    result = _pull(instance, kernel, flags=pull_flags(commit=True, suspend=True, subscription=True))
    (address, request, timeout_ms) = instance.sent[0]
    assert (address, timeout_ms) == ("m:1", 30_000)
    assert (request.group, request.topic, request.queue_id, request.queue_offset) == ("g", "t", 3, 4)
    assert (request.max_messages, request.max_bytes, request.sys_flag) == (32, 1000, 7)
    assert (request.commit_offset, request.suspend_timeout_ms, request.sub_version) == (3, 15_000, 9)
    assert (request.subscription, request.expression_type, request.broker_name) == ("a || b", "TAG", "b")
    assert not request.lite
    assert result == PullResult(
        status=PullStatus.NO_NEW_MESSAGE, next_begin_offset=5, min_offset=1, max_offset=9, messages=()
    )


def test_the_subscription_goes_along_only_where_its_bit_is_set(instance: _Instance, kernel: PullKernel) -> None:
    """Promise 34."""
    _pull(instance, kernel, flags=pull_flags(suspend=True, lite=True))
    assert instance.sent[0][1].subscription is None
    assert instance.sent[0][1].lite


def test_a_broker_of_4_9_is_asked_by_the_request_that_it_knows(instance: _Instance, kernel: PullKernel) -> None:
    """It has no request for pull consumers; that is found out once."""
    usual = instance.answer
    instance.answers = [PullAnswer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED), usual, usual]
    for _ in range(2):
        assert _pull(instance, kernel, flags=pull_flags(suspend=True, lite=True)).next_begin_offset == 5
    assert [request.lite for _, request, _ in instance.sent] == [True, False, False]
    assert len({request.sys_flag for _, request, _ in instance.sent}) == 1
    # Where it is no pull consumer's, a refusal is one.
    instance.answer = PullAnswer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    with pytest.raises(BrokerError):
        _pull(instance, kernel)


def test_next_pull_goes_to_the_suggested_broker(instance: _Instance, kernel: PullKernel) -> None:
    """Promise 68: a slave, which commits nothing; until the queue is given up."""
    instance.answer = PullAnswer(code=19, suggested_broker_id=1)
    for _ in range(2):
        _pull(instance, kernel, flags=pull_flags(commit=True, suspend=True))
    assert [(address, request.sys_flag) for address, request, _ in instance.sent] == [("m:1", 3), ("s:1", 2)]
    kernel.forget(_QUEUE)
    _pull(instance, kernel)
    assert instance.sent[2][0] == "m:1"


def test_an_unknown_broker_is_looked_up_once(instance: _Instance, kernel: PullKernel) -> None:
    """Promise 68."""
    instance.addresses = {}
    with pytest.raises(BrokerNotFound, match="broker b"):
        _pull(instance, kernel)
    instance.after_update = {0: "m:9"}
    _pull(instance, kernel)
    assert instance.sent[0][0] == "m:9"


def test_a_broker_that_is_too_old_for_an_expression(instance: _Instance, kernel: PullKernel) -> None:
    instance.broker_versions = {"m:1": 231}
    with pytest.raises(InvalidArgument, match="SQL92"):
        _pull(instance, kernel, expression_type="SQL92")
    _pull(instance, kernel)
    instance.broker_versions = {"m:1": 232}
    _pull(instance, kernel, expression_type="SQL92")
    assert len(instance.sent) == 2


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (19, PullStatus.NO_NEW_MESSAGE),
        (20, PullStatus.NO_MATCHED_MESSAGE),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_meaning_of_codes(instance: _Instance, kernel: PullKernel, code: int, status: PullStatus) -> None:
    """Promise 46."""
    instance.answer = PullAnswer(code=code)
    assert _pull(instance, kernel).status is status


def test_refusals_and_failures(instance: _Instance, kernel: PullKernel) -> None:
    """Promise 46."""
    instance.answer = PullAnswer(code=26, remark="no such group")
    with pytest.raises(BrokerError, match="no such group") as caught:
        _pull(instance, kernel)
    assert (caught.value.code, caught.value.address) == (26, "m:1")
    instance.answer = RequestTimeout("late")
    with pytest.raises(RequestTimeout):
        _pull(instance, kernel)


def test_an_answer_that_is_no_message_is_a_typed_error(instance: _Instance, kernel: PullKernel) -> None:
    instance.answer = PullAnswer(code=0, body=b"\x00\x00\x00\x50nonsense")
    with pytest.raises(CorruptRecord):
        _pull(instance, kernel)
