"""Transactional messages: a message that consumers see when its sender's local transaction has committed.

    prepare -> half message stored -> local transaction -> its outcome to the broker (37), one-way
    a broker without an outcome asks the group's producers (39) -> checker -> the outcome (37)

Invariant: however a local transaction ends, its broker gets one outcome; an exception is ``UNKNOWN``, since nobody
knows how far it came. An outcome that is lost on the way costs a check, never the message. The checker is not asked
about a local transaction that runs here: it would find nothing of it yet, and roll back a message that is committed
later.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from cometmq._engine import parse_message_id
from cometmq.client.send.outgoing import DELAYS, SendStatus
from cometmq.client.send.sending import DEFAULT_REGION
from cometmq.client.trace.trace_records import EndTransactionTrace
from cometmq.errors import ForkedClient, InvalidArgument, WrongType
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
_REASON_CHARS = 400
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
    """The outcome of a message that was sent in a transaction.

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
        outcome: the local transaction's return value.
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
        self,
        instance: ClientInstance,
        *,
        group: str,
        checker: Checker,
        require_own_process: Callable[[], None],
        executor: Executor | None = None,
    ) -> None:
        """Nothing is under way; on the loop.

        Args:
            instance: reaches the brokers.
            group: the producer's group as it stands on the wire.
            checker: returns outcomes that brokers do not know.
            require_own_process: raises ForkedClient in a fork of the process.
            executor: where a plain checker runs; None for a thread of its own.
        """
        self._instance = instance
        self._group = group
        self._checker = checker
        self._require_own_process = require_own_process
        self._executor = executor
        self._own_thread: ThreadPoolExecutor | None = None
        self._checking = 0
        self._is_closed = False
        self._running: set[str] = set()
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

        Raises:
            ForkedClient: the block ended in a fork of the process that it began in; the outcome is that one's to send.
        """
        is_safe = sent.status is SendStatus.SEND_OK
        decision = Decision(is_safe, None if is_safe else TransactionState.ROLLBACK)
        self._running.add(sent.unique_id)
        try:
            yield decision
            decision.state = _state_of(decision.outcome, "the local transaction")
        except BaseException as error:
            with suppress(ForkedClient):
                self._end(message, topic, sent, TransactionState.UNKNOWN, error)
            raise
        finally:
            self._running.discard(sent.unique_id)
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
        self._require_own_process()
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
        remark = None if error is None else f"executeLocalTransactionBranch exception: {_text_of(error)}"
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
        if message.unique_id in self._running:
            self._answer(address, question, message, TransactionState.UNKNOWN, "the local transaction is running")
            return
        if self._checking >= CHECKS_MAX:
            _log.warning("transaction %s: %d checks wait, so this one is left out", message.unique_id, self._checking)
            return
        self._checking += 1
        try:
            state, remark = await self._ask_checker(message)
        finally:
            self._checking -= 1
        self._answer(address, question, message, state, remark)

    def _answer(
        self, address: str, question: Command, message: ReceivedMessage, state: TransactionState, remark: str | None
    ) -> None:
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
        """Return the outcome, UNKNOWN with the reason where the checker failed.

        It raises nothing but what ends the program or the task. A checker that calls ``sys.exit()`` has failed.
        """
        try:
            if inspect.iscoroutinefunction(self._checker):
                outcome = await self._checker(message)
            else:
                executor = self._executor or self._thread()
                called = await asyncio.get_running_loop().run_in_executor(executor, _called, self._checker, message)
                if called.error is not None:
                    return _failed(message, called.error)
                outcome = called.outcome
                if inspect.isawaitable(outcome):  # an object whose call is a coroutine does not look like one
                    outcome = await outcome
            return _state_of(outcome, "the checker"), None
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the checker is the user's: its failure is an outcome, too
            return _failed(message, error)

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


@dataclass(slots=True)
class _Called:
    """The end of a checker's call in a thread, its exception included: a future takes no StopIteration, and asyncio
    hands SystemExit on to the loop."""

    outcome: object = None
    error: BaseException | None = None


def _called(checker: Checker, message: ReceivedMessage) -> _Called:
    try:
        return _Called(checker(message))
    except BaseException as error:  # noqa: BLE001 - as above
        return _Called(error=error)


def _failed(message: ReceivedMessage, error: BaseException) -> tuple[TransactionState, str]:
    reason = _text_of(error)
    _log.warning("transaction %s: the checker failed with %s", message.unique_id, reason, exc_info=error)
    return TransactionState.UNKNOWN, f"checkLocalTransactionState Exception: {reason}"


def _text_of(error: BaseException) -> str:
    """Return a text that a header can hold."""
    try:
        text = repr(error)
    except Exception:  # noqa: BLE001 - an exception class may do anything there
        text = type(error).__name__
    text = text if len(text) <= _REASON_CHARS else f"{text[:_REASON_CHARS]}…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _state_of(outcome: object, who: str) -> TransactionState:
    if outcome is None:
        return TransactionState.UNKNOWN
    if isinstance(outcome, TransactionState):
        return outcome
    raise WrongType(f"{who} returned {outcome!r}; return a TransactionState, or None where the outcome is not known")
