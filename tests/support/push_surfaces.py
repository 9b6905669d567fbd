"""The asyncio push consumer with the blocking one's methods, so that one suite tests both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cometmq.aio.push
from cometmq.client.push_consumer import PushConsumer

__all__ = ["SURFACES", "AioMember", "maker"]

SURFACES = ("client", "aio")
LIMIT_S = 60


class AioMember:
    """An asyncio push consumer on a loop that turns in a thread; each call waits for its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *args: Any, **options: Any) -> None:
        self._loop = loop
        self.consumer = cometmq.aio.push.PushConsumer(*args, **options)

    def __repr__(self) -> str:
        return repr(self.consumer)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.consumer, name)
        return partial(self._call, found) if asyncio.iscoroutinefunction(found) else found

    def _call(self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
        returned = asyncio.run_coroutine_threadsafe(method(*args, **options), self._loop).result(LIMIT_S)
        return self if returned is self.consumer else returned

    def __enter__(self) -> AioMember:
        self._call(self.consumer.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self.consumer.__aexit__, None, None, None)


@contextmanager
def maker(surface: str) -> Iterator[Callable[..., Any]]:
    """Give what makes push consumers of one surface; their loop ends with the block."""
    if surface == "client":
        yield PushConsumer
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="aio-loop")
    thread.start()
    try:
        yield partial(AioMember, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
