#!/usr/bin/env python3
"""Three workers share a store, as those of a web server do; the one that writes is killed, and the others go on.

    python examples/shared_workers.py [FOLDER]

Every worker opens the store with ``mode="auto"``. One of them is the writer; what the others append goes through it.
When it dies, another takes over.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection, wait

import cometmq

EACH = 20


def worker(folder: str, name: str, parent: Connection) -> None:
    """Runs in a process of its own: opens the store there, never before a fork."""
    with cometmq.open(folder, mode="auto") as store:
        for number in range(EACH):
            store.append("orders", f"{name}/{number}".encode(), keys=name)
            parent.send((os.getpid(), store.is_writer))
    parent.close()


def main(folder: str) -> None:
    context = multiprocessing.get_context("spawn")
    ends: list[Connection] = []
    workers = []
    for number in range(3):
        mine, theirs = context.Pipe(duplex=False)
        workers.append(context.Process(target=worker, args=(folder, f"worker-{number}", theirs)))
        workers[-1].start()
        theirs.close()
        ends.append(mine)
    acknowledged = 0
    killed: int | None = None
    while ends:
        for end in wait(ends):
            assert isinstance(end, Connection)
            try:
                pid, is_writer = end.recv()
            except EOFError:
                ends.remove(end)
                continue
            acknowledged += 1
            if is_writer and killed is None:
                os.kill(pid, signal.SIGKILL)
                killed = pid
    for process in workers:
        process.join()
    with cometmq.open(folder) as store:
        stored = sum(1 for _ in store.read("orders"))
    print(f"{acknowledged} appends returned, {stored} messages stored; the writer {killed} was killed meanwhile")
    assert stored >= acknowledged


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
