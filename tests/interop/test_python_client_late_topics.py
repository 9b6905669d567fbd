"""Our members begin with a topic soon after it was created: by what they ask for it, as nothing periodic runs here."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from cometmq.client import PullConsumer, PushConsumer, SimpleConsumer
from interop.landscapes import on_each_server
from interop.members import Seen, create_topic, producer
from interop.sites import Site
from interop.waiting import eventually

NEVER_MS = 3_600_000
SELDOM: dict[str, Any] = {
    "poll_name_server_interval_ms": NEVER_MS,
    "heartbeat_broker_interval_ms": NEVER_MS,
    "rebalance_wait_interval_ms": NEVER_MS,
}
KINDS = ("push", "pull", "simple")


class Member:
    """A consumer of any kind, of a topic that is there and one that is not."""

    def __init__(self, site: Site, kind: str, topics: tuple[str, ...]) -> None:
        group = f"late_{kind}"
        given: dict[str, Any] = {
            "name_servers": site.namesrv.address,
            "consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
            **SELDOM,
        }
        self.seen = Seen()
        self.consumer: Any
        if kind == "push":
            self.consumer = PushConsumer(group, listener=self.seen.by(kind, lambda _: None), **given)
        elif kind == "pull":
            self.consumer = PullConsumer(group, **given)
        else:
            del given["rebalance_wait_interval_ms"]
            self.consumer = SimpleConsumer(group, **given)
        self.bodies: list[bytes] = []
        for topic in topics:
            self.consumer.subscribe(topic)

    def came(self, body: bytes) -> bool:
        """Whether a message came, by asking once more."""
        if isinstance(self.consumer, PullConsumer):
            self.bodies += [bytes(message.body) for message in self.consumer.poll(200)]
        elif isinstance(self.consumer, SimpleConsumer):
            messages = self.consumer.receive(wait_s=20)
            self.consumer.ack_many(messages)
            self.bodies += [bytes(message.body) for message in messages]
        else:
            self.bodies = [bytes(taken.message.body) for taken in self.seen.all]
        return body in self.bodies


@on_each_server(old=False)
@pytest.mark.parametrize("kind", KINDS)
def test_first_message_of_a_topic_that_is_created_behind_its_member(servers: Site, kind: str) -> None:
    there, late = f"PyThere{kind}", f"PyLate{kind}"
    create_topic(servers, there, queues=1)
    with ExitStack() as stack:
        member = Member(servers, kind, (there, late))
        stack.enter_context(member.consumer)
        sender = stack.enter_context(producer(servers))
        sender.send(there, b"there")
        eventually(lambda: member.came(b"there"))
        create_topic(servers, late, queues=2)
        sender.send(late, b"late")
        eventually(lambda: member.came(b"late"))
