"""Measures an append in the writer's process and from another process, through the door and by the hand-off folder.

    python benchmarks/run_handoff.py [--rounds N] [--each N] [--flush sync|async]

Two processes: this one is not the writer; the other is, and appends too when it is asked to. The three ways take turns,
``--each`` appends of 128 B at a time, in the same store. Nothing unverified is printed: each message is stored once,
under its way's key, in order. Figures are medians and quartiles of single appends, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import cometmq
from bench_support import new_directory

WAYS = ("writer's process", "door", "folder")


def write(path: str, flush: str, parent: Connection) -> None:
    """Runs in the writer's process: append as often as the parent says, and send it the times."""
    with cometmq.open(path, flush=flush) as store:
        store.append("warm", b"")
        parent.send([])
        while (request := parent.recv()) is not None:
            first, count = request
            parent.send(append(store, WAYS[0], first, count))


def append(store: cometmq.Store, way: str, first: int, count: int) -> list[float]:
    """Return how long each append took, in milliseconds."""
    times = []
    for number in range(first, first + count):
        began = time.perf_counter()
        store.append("t", b"%-128d" % number, tags=way)
        times.append((time.perf_counter() - began) * 1000)
    return times


def main() -> None:
    """Measure, verify, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--each", type=int, default=25)
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    given = parser.parse_args()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with new_directory() as folder:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=write, args=(str(folder / "store"), given.flush, there))
        process.start()
        here.recv()
        with cometmq.open(folder / "store", mode="r") as store:
            client = store._client
            assert client is not None
            ask = client.door.ask
            store.append("warm", b"")
            for turn in range(given.rounds):
                first = turn * given.each
                here.send((first, given.each))
                times[WAYS[0]] += here.recv()
                times[WAYS[1]] += append(store, WAYS[1], first, given.each)
                client.door.ask = lambda _: None  # type: ignore[method-assign]
                times[WAYS[2]] += append(store, WAYS[2], first, given.each)
                client.door.ask = ask  # type: ignore[method-assign]
            for way in WAYS:
                found = [int(message.body_bytes) for message in store.read("t", tags=[way])]
                assert found == list(range(given.rounds * given.each)), way
        here.send(None)
        process.join()
    figures = {}
    for way, taken in times.items():
        low, middle, high = statistics.quantiles(taken, n=4)
        figures[way] = {"median_ms": round(middle, 3), "quartiles_ms": [round(low, 3), round(high, 3)]}
    print(json.dumps({"flush": given.flush, "appends": given.rounds * given.each, "ways": figures}, indent=2))


if __name__ == "__main__":
    main()
