"""The calls that put messages in: directly, or handed off to the store's writer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from cometmq._engine import AppendManyResult, AppendResult, column_values, encode_properties, join_keys
from cometmq._plural import counted
from cometmq.errors import InvalidArgument, MessageTooLarge, ReadOnlyStore, StoreClosed, StoreFenced, WrongType
from cometmq.store.core import StoreCore
from cometmq.store.handoff_client import HANDOFF_TIMEOUT_S, HandedOff, HandoffClient
from cometmq.store.handoff_files import HANDOFF_PROPERTY, CallWork, MessagesWork, new_work_id
from cometmq.store.options import INT32_MAX, INT64_MAX, in_range
from cometmq.store.topic_book import WriteTarget, not_a_topic
from cometmq.store_config.names import may_send_to, validate_topic

if TYPE_CHECKING:
    from cometmq._types import Bodies, Body, Keys, Numbers, Properties, Values
    from cometmq.store.store import Store
    from cometmq.store.transaction import Transaction

__all__ = ["Appending"]


class Appending(StoreCore):
    """The calls that put messages in."""

    def append(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | bytes | None = None,
        keys: Keys = None,
        properties: Properties | None = None,
        queue: int | None = None,
        flag: int = 0,
        born_timestamp_ms: int = 0,
        wait: bool = True,
    ) -> AppendResult:
        """Append a message.

        On disk when it returns, under synchronous flush and unless ``wait`` is False. A new topic is made with the
        store's ``default_queues``.

        Args:
            topic: letters, digits, ``%``, ``|``, ``-``, ``_``; up to 127.
            body: any bytes-like object, up to ``body_bytes_max``; may be empty.
            tags: one tag, to filter by; without ``||``, and without blanks at its ends.
            keys: keys to find it by: a list, or one text in which blanks divide them.
            properties: further names and values. ``UNIQ_KEY`` is found like a key.
            queue: queue of the topic; None for each in turn.
            flag: 32 bits of your own.
            born_timestamp_ms: when it was made; 0 for now.
            wait: under synchronous flush, return only when it is on disk. False: :meth:`wait_durable` waits for it.
                Nobody sees it before.

        Returns:
            Where it was stored.

        Raises:
            InvalidTopic: RocketMQ would refuse the name.
            InvalidArgument: another argument cannot be used. MessageTooLarge: over a limit.
            DiskFull: no space; nothing was appended, and it works again once there is.
            StoreFenced: an earlier write failed; open the store again.
            HandoffWaiting: read-only, and the writer has not taken the message within 30 s; it is durable.

        In a store opened with mode "r" the message is left to the writer, and the call waits for it
        (:meth:`hand_off` does not). With mode "auto" the same, while another process is the writer; there ``wait`` has
        no effect: a message is always as durable as the flush mode promises.

        Thread safety: any thread. Under asynchronous flush the GIL is kept, since the call takes well under a
        microsecond in the engine; under synchronous flush it is released.
        """
        try:
            target = self._targets.get(topic)
        except TypeError:
            raise not_a_topic(topic) from None  # unhashable: a list
        if target is None:
            if self._read_only:
                return self._append_by_writer(topic, body, tags, keys, properties, queue, flag, born_timestamp_ms)
            target = self._new_target(topic)
        if queue is None:
            queue = target.next_queue()
        elif type(queue) is not int or not 0 <= queue < target.queues:
            queue = self._checked_queue(topic, queue, target.queues)
        if keys is not None and type(keys) is not str:
            keys = join_keys(keys)
        if flag or born_timestamp_ms:
            check_numbers(flag, born_timestamp_ms)
        return self._handle.append(
            topic,
            body,
            tags,
            keys,
            None if properties is None else encode_without_mark(properties),
            queue,
            flag,
            born_timestamp_ms,
            wait,
        )

    def append_many(
        self,
        topic: str,
        bodies: Bodies,
        *,
        tags: Values = None,
        keys: Values = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        queue: int | Numbers | None = None,
        flag: int = 0,
        born_timestamps_ms: int | Numbers | None = None,
        wait: bool = True,
    ) -> AppendManyResult:
        """Append messages of one topic, in order. Much cheaper per message than :meth:`append`.

        ``bodies``, ``tags`` and ``keys`` may be lists, numpy arrays of fixed width (dtype ``S``: without trailing
        NULs; ``V``, structured and two-dimensional ``uint8``: the whole width) or Arrow arrays (binary, string, their
        large and view forms, fixed-size binary, dictionaries of these), also chunked ones.

        Args:
            topic: as :meth:`append`.
            bodies: a body per message.
            tags: None, one for all, or one per message (None in it: none); as :meth:`append`.
            keys: None, one text for all, or per message a text or a list of keys.
            properties: None, one mapping for all, or a mapping per message.
            queue: None to deal the messages out over the queues in turn, one queue for all, or one per message.
            flag: 32 bits of your own, for all.
            born_timestamps_ms: None for now, one time for all, or one per message.
            wait: as :meth:`append`.

        Returns:
            Where they were stored, as numpy arrays made when asked for.

        Raises:
            As :meth:`append`. Messages before the failed one stay appended: ``error.appended`` is their number.

        Thread safety: any thread. The GIL is released once, while the engine works. The elements are borrowed
        meanwhile: do not change a bytearray or numpy array that is being appended.
        """
        try:
            target = self._targets.get(topic)
        except TypeError:
            raise not_a_topic(topic) from None  # unhashable: a list
        if target is None:
            if self._read_only:
                return self._append_many_by_writer(
                    topic, bodies, tags, keys, properties, queue, flag, born_timestamps_ms
                )
            target = self._new_target(topic)
        check_numbers(flag, born_timestamps_ms if isinstance(born_timestamps_ms, int) else 0)
        spread_from = -1
        if queue is None:
            queue, spread_from = 0, target.turn
        result = self._handle.append_many(
            topic,
            bodies,
            tags,
            keys,
            encode_each(properties),
            queue,
            target.queues,
            spread_from=spread_from,
            flag=flag,
            born_timestamps_ms=born_timestamps_ms,
            wait=wait,
        )
        if spread_from >= 0:
            target.turn = (spread_from + len(result)) % target.queues
        return result

    def _new_target(self, topic: str) -> WriteTarget:
        with self._handle.hold():
            return self._topic_book.target(topic)

    @staticmethod
    def _checked_queue(topic: str, queue: int, queues: int) -> int:
        """Return a queue as an int of Python's own; numpy has others."""
        number = in_range(queue, "queue", -INT64_MAX, INT64_MAX)
        if not 0 <= number < queues:
            raise InvalidArgument(
                f"the topic {topic} has {counted(queues, 'queue')}, counted from 0, and no {number}; set_topic_queues "
                "changes their number"
            )
        return number

    def wait_durable(self, end: int) -> None:
        """Wait until everything up to the physical offset ``end`` (``result.end``) can be read, and is on disk.

        Under asynchronous flush nothing is waited for: see :meth:`flush`.
        """
        end = in_range(end, "end", 0, INT64_MAX)
        if self._role is None:
            self._handle.wait_durable(end)  # in a shared store, every append has waited

    def flush(self) -> None:
        """Make everything that was appended durable, in any flush mode. The store's writer does it.

        Raises:
            StoreFenced: with mode "auto", a writer in this process failed since the last flush: messages that were
                appended before may be lost.
            HandoffWaiting: the writer is another process, and has not done it within 30 s.
        """
        role, writer = self._role, self._appender()
        flushed = False
        if writer is not None:
            try:
                writer._handle.flush()
                flushed = True
            except StoreClosed as error:
                self._check_moved(error)
            except StoreFenced:
                if role is not None:
                    role.step_down(cast("Store", writer))
                    with suppress(StoreFenced):  # raised here
                        role.check_flush()
                raise
        if role is not None:
            role.check_flush()  # it waits for a move under way
        if flushed:
            return
        client = self._client
        if client is not None and client.appended:
            # Other work was durable when it was left.
            client.appended = False
            try:
                client.call(CallWork(work_id=new_work_id(), call="flush", arguments={}), HANDOFF_TIMEOUT_S)
            except BaseException:
                client.appended = True
                raise
        elif role is None:
            self._handle.flush()

    def transaction(self) -> Transaction:
        """Begin a transaction: ``with store.transaction() as t: t.append(...)`` stores several messages, or none.

        Messages of any topics become visible together at the end of the block, and a crash or a power loss at any
        point leaves all of them or none. A block that raises stores nothing. At most 8,192 messages and 64 MiB.
        See ``docs/embed.md``.

        Raises:
            ReadOnlyStore: this process is not the store's writer.
        """
        from cometmq.store.transaction import Transaction

        writer = self._appender()
        if writer is None:
            raise ReadOnlyStore(
                f"{self.path}: transactions need the writer's process, and another process has that role; append_many "
                "stores messages of one topic through it"
            )
        return Transaction(cast("Store", writer))

    def _has_target(self, topic: str) -> bool:
        """Return whether an append to a topic needs no more than the log."""
        try:
            return topic in self._targets
        except TypeError:
            raise not_a_topic(topic) from None  # unhashable: a list

    def _target_of(self, topic: str) -> WriteTarget:
        """Return what an append to a topic needs, making the topic where it is new."""
        try:
            return self._targets.get(topic) or self._new_target(topic)
        except TypeError:
            raise not_a_topic(topic) from None  # unhashable: a list

    # --- Hand-off

    def hand_off(
        self,
        topic: str,
        bodies: Bodies,
        *,
        tags: Values = None,
        keys: Values = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        queue: int | Numbers | None = None,
        flag: int = 0,
        born_timestamps_ms: int | Numbers | None = None,
    ) -> HandedOff:
        """Leave messages to the store's writer, durably, without waiting until it has appended them.

        For a store opened with mode "r" or "auto". They are appended exactly once, by the writer or, where there is
        none, by the next one; where nobody writes just now, by this call. See :mod:`cometmq.store.handoff_files`. The
        arguments are :meth:`append_many`'s.

        Raises:
            StoreLocked: a RocketMQ broker holds the store: send over the wire.
            LimitReached: too much waits already.
            MessageTooLarge: more than 256 MiB at once.
        """
        client, work = self._work(topic, bodies, tags, keys, properties, queue, flag, born_timestamps_ms)
        return client.leave_messages(work)

    def _append_by_writer(
        self,
        topic: str,
        body: Body,
        tags: str | bytes | None,
        keys: Keys,
        properties: Properties | None,
        queue: int | None,
        flag: int,
        born_timestamp_ms: int,
    ) -> AppendResult:
        writer = self._appender()
        if writer is not None:
            try:
                return writer.append(
                    topic,
                    body,
                    tags=tags,
                    keys=keys,
                    properties=properties,
                    queue=queue,
                    flag=flag,
                    born_timestamp_ms=born_timestamp_ms,
                )
            except StoreClosed as error:
                self._check_moved(error)
        joined = None if keys is None else join_keys(keys)
        born = born_timestamp_ms or None
        client, work = self._work(topic, [body], tags, joined, properties, queue, flag, born)
        return client.append(work, HANDOFF_TIMEOUT_S)[0]

    def _append_many_by_writer(
        self,
        topic: str,
        bodies: Bodies,
        tags: Values,
        keys: Values,
        properties: Properties | Sequence[Properties | None] | None,
        queue: int | Numbers | None,
        flag: int,
        born_timestamps_ms: int | Numbers | None,
    ) -> AppendManyResult:
        writer = self._appender()
        if writer is not None:
            try:
                return writer.append_many(
                    topic,
                    bodies,
                    tags=tags,
                    keys=keys,
                    properties=properties,
                    queue=queue,
                    flag=flag,
                    born_timestamps_ms=born_timestamps_ms,
                )
            except StoreClosed as error:
                self._check_moved(error)
        client, work = self._work(topic, bodies, tags, keys, properties, queue, flag, born_timestamps_ms)
        return client.append(work, HANDOFF_TIMEOUT_S)

    def _work(
        self,
        topic: str,
        bodies: Bodies,
        tags: Values,
        keys: Values,
        properties: Properties | Sequence[Properties | None] | None,
        queue: int | Numbers | None,
        flag: int,
        born_timestamps_ms: int | Numbers | None,
    ) -> tuple[HandoffClient, MessagesWork]:
        """Return the way to the writer, and the messages as work for it."""
        if self._client is None:
            raise InvalidArgument("this store is the writer: append directly")
        validate_topic(topic)
        check_numbers(flag, born_timestamps_ms if isinstance(born_timestamps_ms, int) else 0)
        if not may_send_to(topic):
            raise InvalidArgument(f"{topic} is RocketMQ's own; messages cannot be sent to it")
        rows = column_values(bodies, tags, keys, encode_each(properties))
        largest = max(map(len, rows.bodies), default=0)
        if largest > self._plan.settings.max_message_size_bytes:
            limit = self._plan.settings.max_message_size_bytes
            raise MessageTooLarge(f"a body has {largest} bytes; at most {limit} are allowed (body_bytes_max)")
        count = len(rows.bodies)
        now_ms = time.time_ns() // 1_000_000
        work = MessagesWork(
            work_id=new_work_id(),
            topic=topic,
            bodies=rows.bodies,
            tags=rows.tags,
            keys=rows.keys,
            properties=rows.properties,
            queues=per_message(queue, count, "queue"),
            flag=flag,
            born_timestamps_ms=per_message(born_timestamps_ms, count, "born_timestamps_ms") or [now_ms] * count,
        )
        return self._client, work


def check_numbers(flag: int, born_timestamp_ms: int) -> None:
    """Refuse numbers that the record has no room for."""
    in_range(flag, "flag", -INT32_MAX - 1, INT32_MAX)
    in_range(born_timestamp_ms, "born_timestamp_ms", -INT64_MAX, INT64_MAX)


def encode_each(
    properties: Properties | Sequence[Properties | None] | None,
) -> bytes | list[bytes] | None:
    """Return properties in the stored form: one for all, or one per message."""
    if properties is None:
        return None
    if isinstance(properties, Mapping):
        return encode_without_mark(properties)
    given: object = properties
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise WrongType(f"properties must be a mapping or a list of mappings, not {type(properties).__name__}")
    return [_encode_one(at, one) for at, one in enumerate(properties)]


def _encode_one(at: int, properties: Properties | None) -> bytes:
    if properties is None:
        return b""
    if not isinstance(properties, Mapping):
        raise WrongType(f"properties[{at}] must be a mapping or None, not {type(properties).__name__}")
    return encode_without_mark(properties)


def encode_without_mark(properties: Properties) -> bytes:
    """Return properties in the stored form. The mark of handed-off work stays behind where a message is forwarded: by
    it a writer counts the rows that it has appended.
    """
    if isinstance(properties, Mapping) and HANDOFF_PROPERTY in properties:
        properties = {name: value for name, value in properties.items() if name != HANDOFF_PROPERTY}
    return encode_properties(properties)


def per_message(values: int | Numbers | None, count: int, name: str) -> list[int] | None:
    """Return a number per message as a list, or None for None."""
    if values is None:
        return None
    if isinstance(values, int):
        return [values] * count
    given: object = values
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise WrongType(f"{name} must be an int or a list of ints, not {type(values).__name__} ({values!r:.60})")
    numbers = [in_range(value, f"{name}[{at}]", -INT64_MAX, INT64_MAX) for at, value in enumerate(values)]
    if len(numbers) != count:
        raise InvalidArgument(f"{name} and bodies must be of one length, not {len(numbers):,} and {count:,}")
    return numbers
