#!/usr/bin/env python3
"""Two processes, one store: one writes, the other follows live and answers.

    python examples/follow_live.py [FOLDER]

A store has one writer at a time. Any number of other processes open it with ``mode="r"``: they see each message as soon
as it is on disk, and what they append is left in the store's hand-off folder, from which the writer takes it.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.synchronize import Event

import cometmq

COUNT = 1000


def reader(folder: str, is_following: Event) -> None:
    """Runs in a process of its own: follow the questions, answer the last one."""
    with cometmq.open(folder, mode="r") as store, store.follow("questions", timeout_s=10) as questions:
        is_following.set()
        for count, message in enumerate(questions, 1):
            if count == COUNT:
                delay_ms = time.time_ns() // 1_000_000 - message.store_timestamp_ms
                print(f"reader: {count} questions seen, the last {delay_ms} ms after it was stored")
                break
        # This process is not the writer: the append goes through the hand-off folder, and waits for the writer.
        answer = store.append("answers", b"42", keys=message.keys)
        print(f"reader: the answer was stored at offset {answer.queue_offset} of {answer.topic}")


def main(folder: str) -> None:
    context = multiprocessing.get_context("spawn")
    is_following = context.Event()
    with cometmq.open(folder) as store:
        for topic in ("questions", "answers"):
            store.create_topic(topic, exist_ok=True)
        process = context.Process(target=reader, args=(folder, is_following))
        with store.follow("answers", timeout_s=20) as answers:
            process.start()
            is_following.wait(10)
            for number in range(COUNT):
                store.append("questions", f"What is {number} times 0.042?".encode(), keys=f"question-{number}")
            for message in answers:
                print(f"writer: {message.keys[0]} was answered with {message.body_bytes.decode()}")
                break
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
