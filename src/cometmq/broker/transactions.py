"""Transactions, as far as the control plane goes: checks, half messages put back (323), and ``transactionMetrics``.

The engine knows which half messages are open (``csrc/broker/txn/cmq_txn.h``) and serves their ends on the loops. A job
lets it write op records and check half messages that have been open too long. It returns the questions; each goes to a
connection of its producer group.

Threads: the event loop's; steps and files run in an executor.
Source: transactions specification 1; upstream's TransactionalMessageCheckService, TransactionMetrics.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from cometmq._engine import parse_message_id
from cometmq.broker.link import ClientLink
from cometmq.broker.plane import DataPlane, HalfQuestion
from cometmq.broker.plane_options import TransactionOptions
from cometmq.broker.registry import ProducerRegistry
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import Error
from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.documents import Document
from cometmq.store_config.fastjson import JsonObject, JsonValue
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps

__all__ = ["BrokerTransactions", "transaction_options"]

_log = logging.getLogger("cometmq.broker.transactions")

_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
_HOUR_MS = 3_600_000
_QUESTIONS_PER_TURN = 32
"""Questions sent before other work of the event loop gets a turn."""


def transaction_options(settings: BrokerSettings) -> TransactionOptions:
    """Return the settings of transactions as the loops need them."""
    return TransactionOptions(
        reject=settings.reject_transaction_message,
        timeout_ms=settings.transaction_timeout_ms,
        interval_ms=settings.transaction_check_interval_ms,
        checks_max=settings.transaction_check_max,
        op_interval_ms=settings.transaction_op_batch_interval_ms,
        op_bytes=settings.transaction_op_msg_max_size_bytes,
        reserved_ms=settings.file_reserved_time_hours * _HOUR_MS,
    )


class BrokerTransactions:
    """The transactions of one broker."""

    def __init__(
        self,
        folder: Path,
        *,
        plane: DataPlane,
        topics: BrokerTopics,
        producers: ProducerRegistry,
        link: ClientLink,
        broker_name: str,
        now_ms: Callable[[], int],
        file_ops: FileOps = SYSTEM_FILE_OPS,
    ) -> None:
        """Read ``transactionMetrics``.

        Args:
            folder: the store's ``config`` folder.
            plane, topics, producers, link: the broker's.
            broker_name: the broker's name.
            now_ms, file_ops: time and files.

        Raises:
            ConfigError: the file cannot be used, nor its ``.bak``.
        """
        self._plane = plane
        self._topics = topics
        self._producers = producers
        self._link = link
        self._broker_name = broker_name
        self._now_ms = now_ms
        self._round = 0
        self._has_asked = False
        self._stored: dict[str, tuple[int, int]] = {}
        self._writing = threading.Lock()
        self._metrics = Document(folder, "transactionMetrics", file_ops=file_ops)
        warning = self._metrics.load().warning
        if warning is not None:
            _log.error("damaged file passed over", extra={"error": warning})

    def start(self) -> None:
        """Read which half messages are open. Blocks; the progress must be loaded."""
        self._plane.start_transactions()
        recovered = self._plane.counters().get("txn_recovered", 0)
        if recovered:
            _log.info("transactions found committed without an op record", extra={"count": recovered})

    def stop(self) -> None:
        """Write down the ends that wait, and the counts. Blocks; no loop runs any more."""
        try:
            self._plane.stop_transactions()
        finally:
            self.persist()

    # --- Checks

    async def step(self) -> None:
        """Write ends that are due, and ask about half messages that are open too long. Called every second.

        Raises:
            Error: some is left to do; the next call tries again.
        """
        loop = asyncio.get_running_loop()
        more, dropped = True, self._link.offers_dropped
        # If a producer does not read its questions, the rest waits for the next step, and the dropped ones for a round.
        while more and self._link.offers_dropped == dropped:
            groups = frozenset(self._producers.groups())
            more, questions = await loop.run_in_executor(None, self._plane.step_transactions, groups)
            for number, question in enumerate(questions):
                if number % _QUESTIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
                self._ask(question)
            self._has_asked = self._has_asked or bool(questions)
        if self._has_asked and not more:
            self._round += 1
            self._has_asked = False
        if self._topics.get(_DISCARD_TOPIC) is None and self._plane.counters().get("txn_discarded", 0):
            # Only now can anybody read what lies there.
            await self._topics.make_for_group(_DISCARD_TOPIC, queues=1)
            _log.warning("half messages were discarded after too many checks", extra={"topic": _DISCARD_TOPIC})

    def _ask(self, question: HalfQuestion) -> None:
        """Send the question to a connection of the group, in the next round to the next one.

        Its producer answers with a request (37), or never does.
        """
        members = self._producers.get(question.group)
        if not members:
            # It left since the check counted; the next round asks again.
            return
        connections = list(members)
        turn = zlib.crc32(question.unique_id.encode("utf-8", "surrogatepass")) + self._round
        fields = {
            "topic": _HALF_TOPIC,
            "commitLogOffset": str(question.physical_offset),
            "tranStateTableOffset": str(question.queue_offset),
            "offsetMsgId": question.message_id,
            "bname": self._broker_name,
        }
        if question.unique_id:
            fields |= {"msgId": question.unique_id, "transactionId": question.unique_id}
        request = Command(code=RequestCode.CHECK_TRANSACTION_STATE, fields=fields, body=question.body).as_oneway()
        self._link.offer(connections[turn % len(connections)], request)

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume}

    async def _resume(self, request: Command, caller: Caller) -> Command:
        message_id = Members(request.fields).required("msgId")
        try:
            _, physical_offset = parse_message_id(message_id)
            await caller.store_apart(lambda: self._plane.resume_half(physical_offset))
        except Error as error:
            _log.warning("half message not put back", extra={"id": message_id, "error": str(error)})
            text = f"Put message back to {_HALF_TOPIC} failed. {error.message}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text) from error
        _log.info("half message put back", extra={"id": message_id})
        return ok(request)

    # --- transactionMetrics

    def persist(self) -> None:
        """Write the counts of open half messages down where they changed. Any thread.

        Raises:
            StorageError: they could not be written; the next call tries again.
        """
        with self._writing:
            counts = dict(self._plane.half_counts())
            changed = {topic: count for topic, count in counts.items() if self._stored.get(topic, (0, 0)) != count}
            if changed:
                self._metrics.update(lambda content: self._add(content, changed))
                self._stored = counts
            self._metrics.persist()

    def _add(self, content: JsonObject, changed: dict[str, tuple[int, int]]) -> None:
        now_ms = self._now_ms()
        version = _object_in(content, "dataVersion")
        topics = _object_in(content, "transactionCount")
        changes = 0
        for topic, (halves, ended) in changed.items():
            halves_before, ended_before = self._stored.get(topic, (0, 0))
            begun, over = halves - halves_before, ended - ended_before
            changes += begun + over
            entry = _object_in(topics, topic)
            entry["count"] = _number_in(entry, "count") + begun - over
            entry["timeStamp"] = now_ms
        version["counter"] = _number_in(version, "counter") + changes
        version["stateVersion"] = _number_in(version, "stateVersion")
        version["timestamp"] = now_ms


def _object_in(content: JsonObject, name: str) -> JsonObject:
    """Return a member that is an object, made where it is none."""
    found = content.get(name)
    if not isinstance(found, dict):
        found = cast("JsonObject", {})
        content[name] = cast("JsonValue", found)
    return found


def _number_in(content: JsonObject, name: str) -> int:
    found = content.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
