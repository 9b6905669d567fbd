"""The store for asyncio: every method of :class:`cometmq.Store`, with the same arguments and errors.

::

    async with cometmq.aio.open("data/") as store:
        await store.append("orders", b"hello")
        async for message in store.read("orders", follow=True):
            ...

Calls that may wait are awaited; ``read``, ``follow`` and ``scan`` return objects for ``async for``, and ``consumer``
one for ``async with``. :class:`AsyncStore` has the rule.

Where calls wait:

- An append goes into the log within the event loop (a microsecond), and under synchronous flush awaits the disk in a
  thread of the executor, one for all appends that wait: many coroutines share one sync.
- Waiting for new messages is done by one thread per store, which exists only while somebody waits; a wake-up of the
  loop stands for any number of messages.
- Everything else that may touch the disk runs in the executor.

:class:`Producer`, :class:`TransactionProducer`, :class:`PushConsumer`, :class:`PullConsumer` and
:class:`SimpleConsumer` are those of :mod:`cometmq.client`, on the caller's loop.

Cancelling is clean: a cancelled append may or may not have been stored, a cancelled read loses nothing.
"""

from __future__ import annotations

from cometmq.aio.producer import Producer
from cometmq.aio.pull import PullConsumer
from cometmq.aio.push import PushConsumer
from cometmq.aio.readers import AsyncConsumer, AsyncHandedOff, AsyncReader
from cometmq.aio.scans import AsyncScan
from cometmq.aio.simple import SimpleConsumer
from cometmq.aio.store import AsyncStore, open
from cometmq.aio.transactions import TransactionProducer

__all__ = [
    "AsyncConsumer",
    "AsyncHandedOff",
    "AsyncReader",
    "AsyncScan",
    "AsyncStore",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
    "open",
]
