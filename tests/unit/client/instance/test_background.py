"""Checks: the background loop: its work, threads that may not wait for it, Ctrl-C, and forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from cometmq.client.instance.background import THREAD_NAME, Background, _Waiting, background
from cometmq.errors import ClientStateError


async def where() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise LookupError("wrong")


def test_one_loop_in_a_thread_of_its_own() -> None:
    loops = []
    threads = [threading.Thread(target=lambda: loops.append(background())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, loops))) == 1
    assert background().run(where()) == THREAD_NAME
    assert not background().is_own_thread


def test_errors_come_to_the_caller() -> None:
    with pytest.raises(LookupError, match="wrong"):
        background().run(fail())


def test_task_dies_in_the_loop_s_thread() -> None:
    """Callbacks of weak references to it run there: the interpreter drops exceptions of signal handlers in them."""
    loop, threads, references = background(), list[str](), list[weakref.ref[asyncio.Task[None]]]()

    async def note_the_end_of_the_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        references.append(weakref.ref(task, lambda _: threads.append(threading.current_thread().name)))

    waiting = _Waiting(loop.loop, note_the_end_of_the_task())
    loop.call(waiting.begin)
    waiting.wait()
    loop.run(where())  # by then the loop is done with the first one
    assert waiting.result() is None
    del waiting
    assert threads == [THREAD_NAME]


def test_calls() -> None:
    called = threading.Event()
    background().call(called.set)
    assert called.wait(10)


def test_waiting_for_oneself() -> None:
    async def inside() -> None:
        assert background().is_own_thread
        background().run(where())

    with pytest.raises(ClientStateError, match=r"cometmq\.aio"):
        background().run(inside())


def test_a_callback_cannot_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    def leave() -> None:
        raise SystemExit(3)

    background().call(leave)
    assert background().run(where()) == THREAD_NAME
    assert "tried to end" in caplog.text


def test_ctrl_c_cancels_the_work() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt() -> None:
        assert begun.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        background().run(for_ever())
    assert cancelled.is_set(), "the work has ended when the call has"
    thread.join()


FORK = """
import os, sys
from cometmq.client.instance.background import ClientLoop, background
from cometmq.errors import ForkedClient

async def answer(): return 42

mine = background()
used, unused = ClientLoop(), ClientLoop()
assert mine.run(answer()) == used.run(answer()) == 42
pid = os.fork()
if pid == 0:
    try:
        for attempt in (lambda: mine.run(answer()), lambda: mine.call(print), lambda: used.run(answer())):
            try:
                attempt()
            except ForkedClient as error:
                assert "after the fork" in str(error), error
            else:
                os._exit(2)
        os._exit(0 if background().run(answer()) == unused.run(answer()) == 42 and background() is not mine else 3)
    finally:
        os._exit(4)
_, status = os.waitpid(pid, 0)
assert mine.run(answer()) == 42
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forks() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK], timeout=60, check=False, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr.decode()


def test_loops_do_not_mix() -> None:
    other = Background()
    assert other.loop is not background().loop

    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert other.run(loop()) is other.loop
