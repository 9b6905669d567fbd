#!/usr/bin/env python3
"""A store under asyncio: many tasks append and share the waits for the disk, one task handles what they append.

python examples/async_store.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
import time

import cometmq.aio

PRODUCERS = 64
EACH = 50


async def produce(store: cometmq.aio.AsyncStore, name: int) -> None:
    for number in range(EACH):
        # On disk when the await is over; meanwhile other tasks run, and their messages go to disk in the same sync.
        await store.append("readings", f"{name}/{number}".encode(), keys=f"sensor-{name}")


async def consume(store: cometmq.aio.AsyncStore, wanted: int) -> int:
    count = 0
    async with store.consumer("monitor", "readings", follow=True, timeout_s=30) as consumer:
        async for _ in consumer:
            count += 1
            if count % 1000 == 0 or count == wanted:
                await consumer.commit()
            if count == wanted:
                break
    return count


async def main(folder: str) -> None:
    async with cometmq.aio.open(folder) as store:
        await store.create_topic("readings", exist_ok=True)
        begin = time.perf_counter()
        consuming = asyncio.create_task(consume(store, PRODUCERS * EACH))
        await asyncio.gather(*(produce(store, name) for name in range(PRODUCERS)))
        consumed = await consuming
        seconds = time.perf_counter() - begin
        print(f"{PRODUCERS} tasks appended {PRODUCERS * EACH} messages, {consumed} consumed, in {seconds:.2f} s")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "data"))
