"""Transaction: messages of any topics that become visible together, or not at all.

Messages wait in memory. The commit appends them behind one another, in one piece of the log whose beginning is written
last: before that nobody finds any of them, and behind it everybody finds all (docs/decisions/0036).
"""

from __future__ import annotations

import enum
import threading
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, cast

from cometmq._engine import AppendResult, join_keys
from cometmq.errors import Error, InvalidArgument, LimitReached, MessageTooLarge, StoreFenced, WrongType
from cometmq.store.appending import check_numbers, encode_without_mark

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cometmq._types import Body, Keys, Properties
    from cometmq.store.store import Store

__all__ = ["MESSAGES_MAX", "Transaction"]

MESSAGES_MAX = 8192
_BYTES_MAX = 64 << 20

_Row: TypeAlias = "tuple[str, bytes, str | bytes | None, str | bytes | None, bytes | None, int, int, int]"
"""A message as the engine takes it."""


class _State(enum.Enum):
    OPEN = "open"
    COMMITTED = "committed"
    DISCARDED = "discarded"
    UNKNOWN = "committed or not, which its error leaves open"


class Transaction:
    """Messages that become visible together, or not at all. Made by :meth:`cometmq.Store.transaction`.

    ``with store.transaction() as t:`` commits at the end of the block, and discards the messages where the block
    raises. It belongs to the thread that made it.

    Attributes:
        results: where the messages were stored, in the order of :meth:`append`; empty before the commit.
    """

    def __init__(self, store: Store) -> None:
        """Use :meth:`cometmq.Store.transaction`."""
        self.results: list[AppendResult] = []
        self._store = store
        self._bytes_held = 0
        self._thread = threading.get_ident()
        self._state = _State.OPEN
        self._entered = False
        self._messages: list[_Row] = []

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
    ) -> None:
        """Add a message. It is copied, and stored by the commit; a new topic is made at once.

        The arguments are those of :meth:`cometmq.Store.append`. A message that cannot be stored is refused here, and
        is not in the transaction, which stays open.

        Raises:
            InvalidArgument: an argument cannot be used; the transaction has ended, or is another thread's.
            InvalidTopic, MessageTooLarge: as :meth:`cometmq.Store.append`.
            LimitReached: it has 8,192 messages.
        """
        self._check_open()
        if len(self._messages) == MESSAGES_MAX:
            raise LimitReached(f"a transaction has at most {MESSAGES_MAX:,} messages: commit it and begin another")
        target = self._store._target_of(topic)
        try:
            copied = bytes(memoryview(cast("Buffer", body)))
        except TypeError:
            advice = ": encode it (body.encode())" if isinstance(body, str) else ""
            raise WrongType(f"body must be bytes-like, not {type(body).__name__}{advice}") from None
        chosen = target.next_queue() if queue is None else self._store._checked_queue(topic, queue, target.queues)
        check_numbers(flag, born_timestamp_ms)
        row: _Row = (
            topic,
            copied,
            tags,
            None if keys is None else join_keys(keys),
            None if properties is None else encode_without_mark(properties),
            chosen,
            flag,
            born_timestamp_ms,
        )
        self._store.handle.append_together([row], only_check=True)
        bytes_held = self._bytes_held + len(row[1]) + len(row[3] or b"") + len(row[4] or b"")
        if bytes_held > _BYTES_MAX:
            raise MessageTooLarge(f"a transaction has at most {_BYTES_MAX:,} bytes: commit it and begin another")
        self._bytes_held = bytes_held
        self._messages.append(row)

    def __len__(self) -> int:
        """Return how many messages it has."""
        return len(self._messages)

    @property
    def is_open(self) -> bool:
        """True before the commit, and before the messages are discarded."""
        return self._state is _State.OPEN

    def commit(self) -> list[AppendResult]:
        """Store all messages and end the transaction; the end of a ``with`` block does so.

        On disk when it returns, under synchronous flush. Under asynchronous flush a power loss may take the whole
        transaction back, as it may take any append, but never a part of it. After an error nothing is stored, but for
        :class:`~cometmq.StoreFenced` and an interrupt: behind those the transaction may have been stored whole; read
        before you store it again.

        Raises:
            InvalidArgument: the transaction has ended, or is another thread's.
            MessageTooLarge: its records have more than 64 MiB, or more than a segment of the log has room for.
            DiskFull: no space; nothing was stored.
            InvalidTopic, InvalidArgument: a topic was deleted, and cannot be created again or has fewer queues now.
            StoreClosed, StoreFenced: as :meth:`cometmq.Store.append`.
        """
        return self._store_messages(self._take())

    def _take(self) -> list[_Row]:
        """Take the messages out: nothing can be added any more."""
        self._check_open()
        self._state = _State.UNKNOWN
        messages, self._messages = self._messages, []
        return messages

    def _store_messages(self, messages: list[_Row]) -> list[AppendResult]:
        try:
            self._check_targets(messages)
            self.results = self._store.handle.append_together(messages)
        except StoreFenced:
            raise
        except Error:
            self._state = _State.DISCARDED
            raise
        self._state = _State.COMMITTED
        return self.results

    def _check_targets(self, messages: list[_Row]) -> None:
        """Create topics again that were deleted after :meth:`append`, as an append does."""
        last_queues: dict[str, int] = {}
        for message in messages:
            topic, queue = message[0], message[5]
            last_queues[topic] = max(last_queues.get(topic, 0), queue)
        for topic, queue in last_queues.items():
            self._store._checked_queue(topic, queue, self._store._target_of(topic).queues)

    def discard(self) -> None:
        """Drop all messages and end the transaction; a ``with`` block that raises does so. Twice is fine.

        Raises:
            InvalidArgument: it was committed, or is another thread's.
        """
        if self._state is not _State.DISCARDED:
            self._check_open()
        self._state = _State.DISCARDED
        self._messages = []

    def _check_open(self) -> None:
        if self._thread != threading.get_ident():
            raise InvalidArgument("a transaction belongs to the thread that made it: begin one in each thread")
        if not self.is_open:
            raise InvalidArgument(f"the transaction was {self._state.value}: begin another with store.transaction()")

    def __enter__(self) -> Transaction:
        """Return the transaction itself."""
        self._check_open()
        if self._entered:
            raise InvalidArgument("this transaction is in a with block already: begin another with store.transaction()")
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or discard where the block raised. A transaction that was ended inside stays so."""
        if not self.is_open:
            return
        if kind is None:
            self.commit()
        else:
            self.discard()

    def __repr__(self) -> str:
        """Say its state and how many messages it has."""
        count = len(self.results) if self._state is _State.COMMITTED else len(self._messages)
        return f"<Transaction {self._state.value}, {count} messages>"
