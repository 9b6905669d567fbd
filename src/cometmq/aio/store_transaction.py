"""AsyncTransaction: the transaction of an AsyncStore."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from cometmq._async_only import AsyncOnly

if TYPE_CHECKING:
    from cometmq._engine import AppendResult
    from cometmq._types import Body, Keys, Properties
    from cometmq.aio.store import AsyncStore
    from cometmq.store.transaction import Transaction

__all__ = ["AsyncTransaction"]


class AsyncTransaction(AsyncOnly):
    """Messages that become visible together, or not at all; see :class:`cometmq.store.transaction.Transaction`.

    ``async with store.transaction() as t:`` commits in the executor. One task at a time.
    """

    def __init__(self, store: AsyncStore) -> None:
        """Use :meth:`AsyncStore.transaction`."""
        self._owner = store
        self._transaction: Transaction = store.store.transaction()

    @property
    def results(self) -> list[AppendResult]:
        """Where the messages were stored; empty before the commit."""
        return self._transaction.results

    @property
    def is_open(self) -> bool:
        """True before the commit, and before the messages are discarded."""
        return self._transaction.is_open

    async def append(
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
        """Add a message, as :meth:`Transaction.append`."""
        writer = self._transaction._store
        if not writer._has_target(topic):  # a new topic is made durable first
            await self._owner._call(writer._target_of, topic)
        self._transaction.append(
            topic,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            flag=flag,
            born_timestamp_ms=born_timestamp_ms,
        )

    async def commit(self) -> list[AppendResult]:
        """Store all messages and end the transaction, as :meth:`Transaction.commit`.

        A cancelled commit has stored all messages, or none.
        """
        return await self._owner._commit_together(self._transaction._store_messages, self._transaction._take())

    async def discard(self) -> None:
        """Drop all messages and end the transaction, as :meth:`Transaction.discard`."""
        self._transaction.discard()

    def __len__(self) -> int:
        """Return how many messages it has."""
        return len(self._transaction)

    async def __aenter__(self) -> AsyncTransaction:
        """Return the transaction itself."""
        self._transaction.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit, or discard where the block raised. A transaction that was ended inside stays so."""
        if not self._transaction.is_open:
            return
        if kind is None:
            await self.commit()
        else:
            await self.discard()
