"""Measures the time from ``send`` to the listener with our client, and tells it: one JSON object.

    python benchmarks/system/latency_main.py NAME_SERVER TOPIC COUNT BODY_BYTES RATE

The consumer is this process; the producer is another, which runs this file with ``send`` behind the numbers. It sends
one message at a time, each with the time of its ``send`` on the machine's monotonic clock. Every message must come
once; else nothing is printed. CPU is the consumer's process, all threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

from cometmq.client import ConsumeFromWhere, Producer, PushConsumer, ReceivedMessage

_LIMIT_S = 300
_READY_S = 30
_WARM = b"warm"
_STAMP_BYTES = 16


def send(name_server: str, topic: str, count: int, body_bytes: int, rate: int) -> None:
    """Send, at the rate or as near to it as answers come."""
    fill = bytes(max(body_bytes - _STAMP_BYTES, 0))
    with Producer("latency", name_servers=name_server) as producer:
        producer.send(topic, _WARM)
        due_s = time.perf_counter() + 0.2
        for number in range(count):
            time.sleep(max(due_s - time.perf_counter(), 0))
            stamp = number.to_bytes(8, "big") + time.monotonic_ns().to_bytes(8, "big")
            producer.send(topic, stamp + fill)
            due_s = max(due_s + 1 / rate, time.perf_counter())


def receive(name_server: str, topic: str, count: int, body_bytes: int, rate: int) -> str:
    """Consume what the other process sends."""
    came: list[tuple[int, float]] = []
    ready, over = threading.Event(), threading.Event()

    def listener(message: ReceivedMessage) -> None:
        now_ns = time.monotonic_ns()
        body = message.body_bytes
        if body == _WARM:
            ready.set()
            return
        number, sent_ns = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:_STAMP_BYTES], "big")
        came.append((number, (now_ns - sent_ns) / 1000))
        if len(came) >= count:
            over.set()

    with Producer("latency_first", name_servers=name_server) as producer:
        producer.send(topic, _WARM)  # so that the topic is there
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PushConsumer(f"latency_{topic}", name_servers=name_server, consume_from_where=first)
    consumer.subscribe(topic)
    consumer.listener(listener)
    with consumer:
        if not ready.wait(_READY_S):
            raise SystemExit(f"the consumer got nothing within {_READY_S} s")
        began_s = time.process_time()
        numbers = map(str, (count, body_bytes, rate))
        with subprocess.Popen([sys.executable, __file__, name_server, topic, *numbers, "send"]) as sender:
            is_over = over.wait(_LIMIT_S)
            cpu_s = time.process_time() - began_s
            if not is_over:
                sender.kill()
    if sender.returncode or sorted(number for number, _ in came) != list(range(count)):
        raise SystemExit(f"{len(came):,} of {count:,} messages came, or not each once")
    took_us = sorted(microseconds for _, microseconds in came)
    figures = {
        name: took_us[min(int(count * share), count - 1)]
        for name, share in (("p50 us", 0.5), ("p99 us", 0.99), ("p99.9 us", 0.999))
    }
    return json.dumps(figures | {"CPU us/message": cpu_s * 1e6 / count})


def main() -> int:
    name_server, topic, *given = sys.argv[1:]
    count, body_bytes, rate = map(int, given[:3])
    if given[3:] == ["send"]:
        send(name_server, topic, count, body_bytes, rate)
    else:
        print(receive(name_server, topic, count, body_bytes, rate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
