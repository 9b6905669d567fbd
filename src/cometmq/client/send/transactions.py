"""Transactional messages: a message that consumers see when its sender's local transaction has committed.

    prepare -> half message stored -> local transaction -> its outcome to the broker (37), one-way
    a broker without an outcome asks the group's producers (39) -> checker -> the outcome (37)

Invariant: whatever ends a local transaction, its broker gets one outcome; an exception is ``UNKNOWN``, since nobody
knows how far it came. An outcome that is lost on the way costs a check, never the message.

Threads: outcomes are sent from any; checks are the loop's, plain checkers run in a thread. Source: specification of
transactions and filters 1.10.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from cometmq._engine import parse_message_id
from cometmq.client.send.outgoing import DELAYS, SendStatus
from cometmq.client.send.sending import DEFAULT_REGION
from cometmq.client.trace.trace_records import EndTransactionTrace
from cometmq.errors import InvalidArgument, WrongType
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request

if TYPE_CHECKING:
    from cometmq._engine import OutgoingMessage, ReceivedMessage, SendResult
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.trace.trace import TraceDispatcher
    from cometmq.remoting.command import Command

__all__ = ["Checker", "Decision", "TransactionResult", "TransactionState", "Transactions"]

CHECKS_MAX = 2_000
"""Checks that wait for the checker; a broker asks again for those beyond."""

_COMMITTED = 2
_log = logging.getLogger(__name__)


class TransactionState(enum.IntEnum):
    """The outcome of a local transaction, with upstream's bits."""

    UNKNOWN = 0
    """Not known yet: the broker asks the checker later."""
    COMMIT = 8
    """Consumers get the message."""
    ROLLBACK = 12
    """Nobody gets it."""


_TRACED = {
    TransactionState.UNKNOWN: "UNKNOW",
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
}

Checker: TypeAlias = "Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState | None] | None]"
"""Gets a half message whose outcome its broker does not know, and returns it. ``unique_id`` is the transaction's id."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """What became of a message that was sent in a transaction.

    Attributes:
        sent: where the half message is stored.
        state: the outcome that its broker was sent.
    """

    sent: SendResult
    state: TransactionState

    @property
    def transaction_id(self) -> str:
        """The transaction's id, which the checker sees as the message's ``unique_id``."""
        return self.sent.unique_id


@dataclass(slots=True)
class Decision:
    """The outcome of one local transaction, once it is there.

    Attributes:
        is_open: whether to run the local transaction: not for a half message that is less safe than asked, which is
            rolled back, as upstream does.
        outcome: what the local transaction returned.
        state: the same, checked.
    """

    is_open: bool
    outcome: object
    state: TransactionState = TransactionState.UNKNOWN


class Transactions:
    """The transactions of one producer.

    Attributes:
        dispatcher: takes records of outcomes, where they are traced.
    """

    def __init__(
        self, instance: ClientInstance, *, group: str, checker: Checker, executor: Executor | None = None
    ) -> None:
        """Nothing is under way; on the loop.

        Args:
            instance: reaches the brokers.
            group: the producer's group as it stands on the wire.
            checker: returns outcomes that brokers do not know.
            executor: where a plain checker runs; None for a thread of its own.
        """
        self._instance = instance
        self._group = group
        self._checker = checker
        self._executor = executor
        self._own_thread: ThreadPoolExecutor | None = None
        self._checking = 0
        self._is_closed = False
        self.dispatcher: TraceDispatcher | None = None

    def __repr__(self) -> str:
        """Return the group, and how many checks are under way."""
        return f"Transactions({self._group}, {self._checking} checks)"

    def close(self) -> None:
        """Answer no more checks: their brokers ask other producers of the group."""
        self._is_closed = True
        if self._own_thread is not None:
            self._own_thread.shutdown(wait=False, cancel_futures=True)

    # --- Local transactions, any thread -------------------------------------------------------------------------------

    def prepare(self, message: OutgoingMessage) -> OutgoingMessage:
        """Return the half message.

        Raises:
            InvalidArgument: it is to be held back.
        """
        properties = message.properties or {}
        is_held = message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None
        if is_held or not DELAYS.isdisjoint(properties):
            raise InvalidArgument("a message in a transaction cannot be held back: its commit delivers it")
        return replace(message, properties={**properties, "TRAN_MSG": "true", "PGROUP": self._group})

    @contextmanager
    def deciding(self, message: OutgoingMessage, topic: str, sent: SendResult) -> Iterator[Decision]:
        """Send the broker of a half message the outcome that the block puts down, ``UNKNOWN`` after an exception.

        Args:
            message: the message.
            topic: its topic on the wire.
            sent: where it is stored.
        """
        is_safe = sent.status is SendStatus.SEND_OK
        decision = Decision(is_safe, None if is_safe else TransactionState.ROLLBACK)
        try:
            yield decision
            decision.state = _state_of(decision.outcome, "the local transaction")
        except BaseException as error:
            self._end(message, topic, sent, TransactionState.UNKNOWN, error)
            raise
        self._end(message, topic, sent, decision.state)

    def _end(
        self,
        message: OutgoingMessage,
        topic: str,
        sent: SendResult,
        state: TransactionState,
        error: BaseException | None = None,
    ) -> None:
        """Send the broker of a half message its outcome. It gets no answer; without the outcome it asks."""
        name = sent.queue.broker_name
        address = self._instance.master_address(name)
        if address is None:
            _log.warning("transaction %s: no master of %s is known for its outcome", sent.unique_id, name)
            return
        try:
            _, commit_log_offset = parse_message_id(sent.offset_message_id)
        except InvalidArgument as unreadable:
            _log.warning("transaction %s: its outcome cannot be sent: %s", sent.unique_id, unreadable)
            return
        command = request(
            RequestCode.END_TRANSACTION,
            topic=topic,
            producerGroup=self._group,
            tranStateTableOffset=sent.queue_offset,
            commitLogOffset=commit_log_offset,
            commitOrRollback=int(state),
            fromTransactionCheck=False,
            msgId=sent.unique_id,
            transactionId=sent.transaction_id,
            bname=name,
        )
        if sent.trace_on:
            self._trace(
                message.tags,
                message.keys,
                topic=topic,
                region_id=sent.region_id,
                message_id=sent.unique_id,
                transaction_id=sent.transaction_id,
                address=address,
                state=state,
            )
        remark = None if error is None else f"executeLocalTransactionBranch exception: {error!r}"
        self._send(address, command, remark)

    def _send(self, address: str, command: Command, remark: str | None) -> None:
        self._instance.network.oneway(address, command if remark is None else replace(command, remark=remark))

    # --- Checks, on the loop ------------------------------------------------------------------------------------------

    async def check(self, address: str, question: Command, message: ReceivedMessage) -> None:
        """Return the outcome of a transaction to the broker that asks for it.

        Args:
            address: the broker.
            question: its request.
            message: the half message.
        """
        if self._is_closed:
            return
        if self._checking >= CHECKS_MAX:
            _log.warning("transaction %s: %d checks wait, so this one is left out", message.unique_id, self._checking)
            return
        self._checking += 1
        try:
            state, remark = await self._ask_checker(message)
        finally:
            self._checking -= 1
        fields: Mapping[str, str] = question.fields
        message_id = message.unique_id or message.message_id
        command = request(
            RequestCode.END_TRANSACTION,
            topic=fields.get("topic"),
            producerGroup=self._group,
            tranStateTableOffset=fields.get("tranStateTableOffset"),
            commitLogOffset=fields.get("commitLogOffset"),
            commitOrRollback=int(state),
            fromTransactionCheck=True,
            msgId=message_id,
            transactionId=fields.get("transactionId"),
            bname=fields.get("bname"),
        )
        if message.properties.get("TRACE_ON") != "false":
            self._trace(
                message.tags,
                message.properties.get("KEYS"),
                topic=message.stored_topic,
                region_id=message.properties.get("MSG_REGION", DEFAULT_REGION),
                message_id=message_id,
                transaction_id=fields.get("transactionId"),
                address=address,
                state=state,
                is_from_check=True,
            )
        self._send(address, command, remark)

    async def _ask_checker(self, message: ReceivedMessage) -> tuple[TransactionState, str | None]:
        try:
            if inspect.iscoroutinefunction(self._checker):
                outcome = await self._checker(message)
            else:
                executor = self._executor or self._thread()
                outcome = await asyncio.get_running_loop().run_in_executor(executor, self._checker, message)
                if inspect.isawaitable(outcome):  # an object whose call is a coroutine does not look like one
                    outcome = await outcome
            return _state_of(outcome, "the checker"), None
        except Exception as error:  # noqa: BLE001 - the checker is the user's: its failure is an outcome, too
            _log.warning("transaction %s: the checker failed", message.unique_id, exc_info=True)
            return TransactionState.UNKNOWN, f"checkLocalTransactionState Exception: {error!r}"

    def _thread(self) -> ThreadPoolExecutor:
        if self._own_thread is None:
            self._own_thread = ThreadPoolExecutor(1, thread_name_prefix="cometmq-check")
        return self._own_thread

    # --- Trace --------------------------------------------------------------------------------------------------------

    def _trace(
        self,
        tags: str | None,
        keys: str | None,
        *,
        topic: str,
        region_id: str,
        message_id: str,
        transaction_id: str | None,
        address: str,
        state: TransactionState,
        is_from_check: bool = False,
    ) -> None:
        if self.dispatcher is None:
            return
        record = EndTransactionTrace(
            timestamp_ms=self._instance.now_ms(),
            region_id=region_id,
            group=self._group,
            topic=topic,
            message_id=message_id,
            tags=tags or "",
            keys=keys or "",
            store_host=address,
            message_type=_COMMITTED,
            transaction_id=transaction_id or message_id,
            state=_TRACED[state],
            is_from_check=is_from_check,
        )
        self.dispatcher.add(topic, record)


def _state_of(outcome: object, who: str) -> TransactionState:
    if outcome is None:
        return TransactionState.UNKNOWN
    if isinstance(outcome, TransactionState):
        return outcome
    raise WrongType(f"{who} returned {outcome!r}; return a TransactionState, or None where the outcome is not known")
