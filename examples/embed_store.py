#!/usr/bin/env python3
"""A durable queue in your process: append, then read by tag, key, time and offset.

python examples/embed_store.py [FOLDER]        the folder becomes a store; run it twice to see it go on
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta

import cometmq


def main(folder: str) -> None:
    with cometmq.open(folder) as store:
        # A topic is made by its first append; by hand when it is to have several queues.
        store.create_topic("orders", queues=4, exist_ok=True)

        # One message. It is on disk when the call returns.
        stored = store.append("orders", b'{"id": 17, "total": 42}', tags="paid", keys="order-17")
        print(f"stored in queue {stored.queue_id} at offset {stored.queue_offset}, id {stored.message_id}")

        # Many at once: one wait for the disk for all of them. Lists, numpy arrays and Arrow arrays will do.
        # The queue may be chosen, so that what belongs together stays in order.
        ids = range(100, 200)
        store.append_many(
            "orders",
            [f'{{"id": {number}}}'.encode() for number in ids],
            tags=["paid" if number % 3 else "refused" for number in ids],
            keys=[f"order-{number}" for number in ids],
            queue=[number % 4 for number in ids],
        )

        # By tag; several queues come merged in the order of storing. The body is a view into the mapped file.
        refused = [bytes(message.body) for message in store.read("orders", tags="refused")]
        print(f"{len(refused)} refused, the first: {refused[0].decode()}")

        # By key, newest first.
        for message in store.find("orders", "order-17"):
            print(f"order-17: {message.body_bytes.decode()}, tag {message.tags}, keys {message.keys}")

        # By time of storing, and backwards.
        minute_ago = datetime.now() - timedelta(minutes=1)
        print(f"{sum(1 for _ in store.read('orders', start_time=minute_ago))} messages in the last minute")
        newest = next(store.read("orders", backwards=True))
        print(f"the newest is {newest.body_bytes.decode()}")

        # By place.
        assert store.get("orders", stored.queue_id, stored.queue_offset).body_bytes == b'{"id": 17, "total": 42}'
        assert store.get_by_id(stored.message_id).keys == ("order-17",)
        for queue in store.queues("orders"):
            print(f"queue {queue.queue_id} holds the offsets {queue.min_offset} to {queue.max_offset - 1}")

        # Errors are one family and say what to do.
        try:
            cometmq.open(folder)
        except cometmq.StoreLocked as error:
            print(f"a second writer gets: {error}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
