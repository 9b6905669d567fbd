"""Eight workers share the orders of two queues, and one of them hangs: what it took comes to the others.

    python examples/popped_orders.py                   # starts a broker of its own
    python examples/popped_orders.py 127.0.0.1:9876    # uses this name server, CometMQ's or Apache RocketMQ's of 5.x

Every worker takes orders from any queue. Where it ends well it prints who did how many, and how many came twice.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack

import cometmq.admin
from cometmq import testing
from cometmq.client import ConsumeFromWhere, Producer, SimpleConsumer

ORDERS = 400
WORKERS = 8
LIMIT_S = 120
INVISIBLE_MS = 3_000


class Work:
    """The results of all workers, and whether all is done."""

    def __init__(self, expected: set[str]) -> None:
        self._lock = threading.Lock()
        self._left = set(expected)
        self.done_by: Counter[int] = Counter()
        self.came_again: set[str] = set()
        self.is_over = threading.Event()

    def finish(self, worker: int, key: str, times: int) -> None:
        """Take note of an order that is done."""
        with self._lock:
            self._left.discard(key)
            self.done_by[worker] += 1
            if times:
                self.came_again.add(key)
            if not self._left:
                self.is_over.set()


def work(number: int, name_servers: str, topic: str, all_work: Work) -> None:
    """Take orders until all are done. The first worker takes some and then hangs."""
    consumer = SimpleConsumer(
        f"{topic}-workers",
        name_servers=name_servers,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        invisible_time_ms=INVISIBLE_MS,
    )
    consumer.subscribe(topic)
    with consumer:
        while not all_work.is_over.is_set():
            orders = consumer.receive(8, wait_s=1)
            if orders and number == 0:
                all_work.is_over.wait(LIMIT_S)  # it hangs, and acknowledges nothing
                return
            for order in orders:
                time.sleep(0.002)
                all_work.finish(number, order.keys[0], order.reconsume_times)
            consumer.ack_many(orders)


def run(name_servers: str) -> None:
    """Send the orders and have them done."""
    topic = f"PoppedOrders{time.time_ns() // 1_000_000}"
    with cometmq.admin.connect(namesrv=name_servers) as admin:
        admin.topics.create(topic, queues=2)
    all_work = Work({f"order-{number}" for number in range(ORDERS)})
    workers = [
        threading.Thread(target=work, args=(number, name_servers, topic, all_work), daemon=True)
        for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    with Producer("shop", name_servers=name_servers) as producer:
        for number in range(ORDERS):
            producer.send(topic, b"%d" % number, keys=f"order-{number}")
    if not all_work.is_over.wait(LIMIT_S):
        raise SystemExit(f"not all of {ORDERS} orders were done within {LIMIT_S} s")
    for worker in workers:
        worker.join()
    shares = ", ".join(f"worker {number}: {count}" for number, count in sorted(all_work.done_by.items()))
    print(f"{ORDERS} orders were done by {len(all_work.done_by)} of {WORKERS} workers ({shares})")
    print(f"{len(all_work.came_again)} of them came again from the one that hung")


def main() -> None:
    with ExitStack() as life:
        given = sys.argv[1:]
        run(given[0] if given else life.enter_context(testing.cluster()).name_server_address)


if __name__ == "__main__":
    main()
