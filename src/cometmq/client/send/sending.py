"""The outcome of a send: the decision after each attempt, the caller's result, and the future that brings it.

A send is tried again when no answer came, and, where somebody waits for it, after refusals that another broker may not
make. Where no answer came nobody knows whether the message is stored: it is sent again all the same, and an error says
so. Decisions alone: no clock, no sockets. Future and result are compiled (:class:`cometmq._engine.SendFuture`,
:class:`cometmq._engine.SendResult`): there is one of each for every message.

Threads: a future may be used from any; it is completed once, on the loop of its producer.

Source: consumption specification 2.6; :mod:`cometmq.client.send.faults` for what a failure says of a broker.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cometmq._engine import DEFAULT_REGION, SendFuture, SendResult
from cometmq.client.send.outgoing import STATUS_OF, SendStatus
from cometmq.errors import BrokerError, BrokerNotFound, Error, InvalidArgument, LimitReached, NotConnected, SendFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from cometmq._engine import SendAnswer
    from cometmq.client.send.producer_settings import ProducerSettings

__all__ = [
    "DEFAULT_REGION",
    "Failure",
    "Next",
    "Outcome",
    "SendFuture",
    "SendPolicies",
    "SendPolicy",
    "SendResult",
    "arrival",
    "judge",
    "policies_of",
    "send_failed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPolicy:
    """How often a send is tried and after what.

    Attributes:
        attempts: how often at most, the first included.
        retry_codes: refusals after which it is tried again.
        retries_not_stored_ok: try again also where it was stored, but not as safely as asked.
        retries_limits: try again where the client had no room for the request.
        attempt_timeout_ms: longest wait for one attempt while others are left, or -1.
    """

    attempts: int
    retry_codes: frozenset[int] = frozenset()
    retries_not_stored_ok: bool = False
    retries_limits: bool = False
    attempt_timeout_ms: int = -1

    def timeout_ms(self, left_ms: int, *, attempts: int) -> int:
        """Return how long the next attempt may take; ``attempts`` were made."""
        if self.attempt_timeout_ms > 0 and attempts + 1 < self.attempts:
            return min(left_ms, self.attempt_timeout_ms)
        return left_ms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SendPolicies:
    """The policies of one producer, compared by identity.

    Attributes:
        blocking: somebody waits.
        asynchronous: nobody does.
        once: somebody waits, and it may go to one queue only.
        forgotten: no answer is asked for.
    """

    blocking: SendPolicy
    asynchronous: SendPolicy
    once: SendPolicy
    forgotten: SendPolicy


def policies_of(settings: ProducerSettings) -> SendPolicies:
    """Return the policies that a producer's settings ask for."""
    return SendPolicies(
        blocking=SendPolicy(
            attempts=1 + settings.retry_times_when_send_failed,
            retry_codes=frozenset(settings.retry_response_codes),
            retries_not_stored_ok=settings.retry_another_broker_when_not_store_ok,
            retries_limits=True,
            attempt_timeout_ms=settings.send_msg_max_timeout_per_request_ms,
        ),
        asynchronous=SendPolicy(attempts=1 + settings.retry_times_when_send_async_failed),
        once=SendPolicy(attempts=1),
        forgotten=SendPolicy(attempts=1),
    )


class Next(enum.Enum):
    """The step after an attempt."""

    DONE = enum.auto()
    AGAIN = enum.auto()
    FAIL = enum.auto()


class Failure(NamedTuple):
    """An attempt's verdict on its broker.

    Attributes:
        is_isolated: it counts as having taken ten seconds.
        is_reachable: False where nothing gets there.
    """

    is_isolated: bool
    is_reachable: bool


class Outcome(NamedTuple):
    """The decision after an attempt.

    Attributes:
        next: the next step.
        failure: the attempt's verdict on its broker.
        is_uncertain: True where the message may be stored although no answer said so.
    """

    next: Next
    failure: Failure
    is_uncertain: bool


_FINE = Failure(False, True)
_REFUSED = Failure(True, False)


def judge(
    policy: SendPolicy, answer: SendAnswer | Error, *, attempts: int, left_ms: float, probes: bool = False
) -> Outcome:
    """Decide what follows an attempt.

    Args:
        policy: how often and after what it is tried again.
        answer: the broker's, or the error instead of one.
        attempts: how many were made, this one included.
        left_ms: remaining time of the whole send.
        probes: True where a detector looks after brokers that cannot be reached.
    """
    more = attempts < policy.attempts and left_ms > 0
    if isinstance(answer, Error):
        if isinstance(answer, BrokerNotFound):
            return Outcome(Next.AGAIN if more else Next.FAIL, _FINE, False)
        if isinstance(answer, LimitReached):
            again = more and policy.retries_limits
            return Outcome(Next.AGAIN if again else Next.FAIL, Failure(True, not probes), False)
        again = more and answer.retriable
        was_sent = not isinstance(answer, (InvalidArgument, NotConnected))
        return Outcome(Next.AGAIN if again else Next.FAIL, Failure(True, not probes), was_sent)
    status = STATUS_OF.get(answer.code)
    if status is SendStatus.SEND_OK:
        return Outcome(Next.DONE, _FINE, False)
    if status is not None:
        again = more and policy.retries_not_stored_ok
        return Outcome(Next.AGAIN if again else Next.DONE, _FINE, True)
    again = more and answer.code in policy.retry_codes
    return Outcome(Next.AGAIN if again else Next.FAIL, _REFUSED, False)


def send_failed(
    topic: str, error: Error, *, brokers: Sequence[str], attempts: int, elapsed_ms: float, is_uncertain: bool
) -> SendFailed:
    """Make the error of a send that is given up, from that of its last attempt."""
    times = "once" if attempts == 1 else f"{attempts} times"
    tried = f", brokers {', '.join(dict.fromkeys(brokers))}" if brokers else ""
    doubt = "; it may be stored all the same" if is_uncertain else ""
    text = f"the message to topic {topic} was sent {times} in {elapsed_ms:.0f} ms{tried}, and failed{doubt}: {error}"
    failed = SendFailed(
        text,
        topic=topic,
        broker_names=tuple(brokers),
        code=error.code if isinstance(error, BrokerError) else None,
        is_uncertain=is_uncertain,
    )
    failed.retriable = error.retriable
    failed.__cause__ = error
    return failed


def arrival(send: SendFuture, loop: AbstractEventLoop) -> Future[None]:
    """Return a future of the loop that is done when the send is, well or not."""
    arrived = loop.create_future()

    def wake(_: SendFuture) -> None:
        if not arrived.done():
            arrived.set_result(None)

    send.add_done_callback(lambda _: loop.call_soon_threadsafe(wake, send))
    return arrived
