"""Producers that are open when the interpreter exits: their sends are waited for, for a bounded time.

The client's loop runs in a daemon thread, which ends with the interpreter and would take unsent messages with it.

Threads: any; the wait is the main thread's: first when it ends, while executors still run, and again when threads that
are no daemons have ended, and functions that ``atexit`` got after the first producer's start have run, for their sends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # its own wait at the exit is registered first, and so runs after ours
import logging
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.client.instance.service_state import ServiceState

if TYPE_CHECKING:
    from cometmq.client.send.send_engine import SendEngine

__all__ = ["flush_at_exit"]

_LIMIT_S = 5.0
"""Longest wait for all producers together; longer than a send takes by default."""
_BLOCKED_S = 0.5
"""How much longer a loop may take that a callback blocks."""

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_open: weakref.WeakSet[SendEngine] = weakref.WeakSet()
_is_registered = False


def flush_at_exit(engine: SendEngine) -> None:
    """Wait for the sends of a running engine when the interpreter exits, unless it is closed by then."""
    global _is_registered
    with _lock:
        _open.add(engine)
        if not _is_registered:
            atexit.register(_flush)
            # Not atexit alone: by then executors, which look host names up, take no more work.
            with suppress(RuntimeError):  # the exit has begun
                threading._register_atexit(_flush)  # type: ignore[attr-defined]
            _is_registered = True


def _flush() -> None:
    end_s = time.monotonic() + _LIMIT_S
    with _lock:
        engines = list(_open)
    for engine in engines:
        if engine.state is not ServiceState.RUNNING or not engine.may_have_sends:
            continue
        left_s = max(0.0, end_s - time.monotonic())
        finished = asyncio.run_coroutine_threadsafe(engine.finish(left_s), engine.instance.loop)
        try:
            failed = finished.result(left_s + _BLOCKED_S)
        except concurrent.futures.TimeoutError:
            failed = len(engine.attempts.under_way)
        if failed:
            _log.warning(
                "%d sends of producer group %s were not acknowledged when the interpreter exited: call close() or "
                "flush() before",
                failed,
                engine.settings.group,
            )
