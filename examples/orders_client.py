"""Sends orders and consumes them: a producer, a push consumer that fails at first, and a pull consumer.

    python examples/orders_client.py                   # starts a broker of its own
    python examples/orders_client.py 127.0.0.1:9876    # uses this name server, CometMQ's or Apache RocketMQ's

Where it ends well it prints what came; each order came at least once, however often the listener failed.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack

from cometmq import testing
from cometmq.client import ConsumeFromWhere, Outcome, Producer, PullConsumer, PushConsumer, ReceivedMessage

ORDERS = 300
LIMIT_S = 60
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def send(name_servers: str) -> None:
    """Send the orders, each customer's to one queue."""
    with Producer("shop", name_servers=name_servers) as producer:
        first = producer.send("orders", b"order 0", tags="new", keys="order-0")
        print(f"the first order is message {first.queue_offset} of queue {first.queue.queue_id}")
        futures = [
            producer.send_async("orders", b"order %d" % number, tags="new", sharding_key=f"customer-{number % 10}")
            for number in range(1, ORDERS)
        ]
        for future in futures:
            future.result()
        producer.send("orders", b"a note to the staff", tags="note")


def consume(name_servers: str) -> None:
    """Consume them as a group; the tenth of the orders fails when it comes first."""
    done: set[bytes] = set()
    tried: set[bytes] = set()
    retried = threading.Semaphore(0)
    all_done = threading.Event()

    def handle(message: ReceivedMessage) -> Outcome | None:
        order = message.body_bytes
        if order.endswith(b"7") and order not in tried:
            tried.add(order)
            retried.release()
            return Outcome.retry(delay_level=1)  # again in a second; an exception would do as well
        done.add(order)
        if len(done) == ORDERS:
            all_done.set()
        return None

    consumer = PushConsumer("billing", name_servers=name_servers, listener=handle, consume_from_where=FIRST)
    consumer.subscribe("orders", "new || changed")
    with consumer:
        if not all_done.wait(LIMIT_S):
            raise SystemExit(f"{len(done)} of {ORDERS} orders came within {LIMIT_S} s")
    print(f"{len(done)} orders were billed; {len(tried)} of them failed at first and came again")


def look(name_servers: str) -> None:
    """Ask for the notes alone."""
    with PullConsumer("staff", name_servers=name_servers, consume_from_where=FIRST) as consumer:
        consumer.subscribe("orders", "note")
        for message in consumer:
            print(f"a note: {message.body_bytes.decode()}")
            break


def main() -> None:
    with ExitStack() as life:
        given = sys.argv[1:]
        name_servers = given[0] if given else life.enter_context(testing.cluster()).name_server_address
        send(name_servers)
        consume(name_servers)
        look(name_servers)


if __name__ == "__main__":
    main()
