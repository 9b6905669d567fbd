#!/usr/bin/env python3
"""A consumer group: work that goes on where it stopped, also after a crash of the worker.

    python examples/consumer_group.py [FOLDER]

Delivery is at least once: what was handed out but not committed is handed out again. The progress is kept as a
RocketMQ broker keeps it, so that a broker started on this folder later goes on from there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import cometmq

BATCH = 20


def work(store: cometmq.Store, handle: Callable[[cometmq.Message], None]) -> int:
    """Handle everything that the group ``mailer`` has not committed yet; returns how many messages."""
    handled = 0
    with store.consumer("mailer", "mails", tags="welcome || invoice") as consumer:
        while messages := consumer.fetch(BATCH):
            for message in messages:
                handle(message)
                handled += 1
            # Once for the batch: a commit is a file written and synced, some milliseconds.
            consumer.commit()
    return handled


def main(folder: str) -> None:
    sent: list[str] = []

    def send_mail(message: cometmq.Message) -> None:
        sent.append(message.body_bytes.decode())

    def send_mail_until_the_server_fails(message: cometmq.Message) -> None:
        if len(sent) == 50:
            raise ConnectionError("the mail server hung up")
        send_mail(message)

    with cometmq.open(folder) as store:
        addresses = [f"reader{number}@example.org" for number in range(100)]
        store.append_many("mails", [address.encode() for address in addresses], tags="welcome")
        store.append("mails", b"for no mailer", tags="newsletter")
        try:
            work(store, send_mail_until_the_server_fails)
        except ConnectionError as error:
            print(f"the worker stopped after {len(sent)} mails: {error}")

    # The next morning: another process, the same folder. Two batches were committed, so it goes on with the 41st.
    with cometmq.open(folder) as store:
        print(f"{lag(store)} messages are left for the next worker")
        print(f"it sent {work(store, send_mail)} mails, ten of them for the second time; {lag(store)} messages left")
        assert sent == addresses[:50] + addresses[40:]

        # Once more from the start: progress is a number that can be set.
        store.set_progress("mailer", "mails", queue=0, offset=0)
        print(f"set back: {lag(store)} messages left")


def lag(store: cometmq.Store) -> int:
    return sum(progress.lag for progress in store.progress("mailer", "mails"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
