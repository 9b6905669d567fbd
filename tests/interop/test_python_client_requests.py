"""Request and reply between our client and the official Java client, on our brokers and on upstream's."""

from __future__ import annotations

import base64

import pytest

from cometmq.client import ReceivedMessage
from cometmq.errors import ReplyTimeout
from interop.landscapes import beside_java, on_each_server
from interop.members import Seen, create_topic, producer, push
from interop.sites import Peer, Site

TIMEOUT_MS = 30_000
COUNT = 6
LARGE = "0123456789" * 2_000


@on_each_server()
def test_requests_of_our_client_are_answered_by_our_client(servers: Site) -> None:
    topic = "PyRequests"
    create_topic(servers, topic, queues=2)
    with producer(servers, "py_replies") as replier, producer(servers, "py_requests") as asker:

        def answer(message: ReceivedMessage) -> None:
            replier.reply_to(message, b"re: " + message.body_bytes, timeout_ms=TIMEOUT_MS)

        with push(servers, "py_answers", Seen(), answer=answer).subscribe(topic):
            for body in (b"one", b"two", LARGE.encode()):
                assert asker.request(topic, body, timeout_ms=TIMEOUT_MS).body_bytes == b"re: " + body
        with pytest.raises(ReplyTimeout):
            asker.request(topic, b"nobody", timeout_ms=500)


@beside_java()
def test_requests_of_our_client_are_answered_by_java(company: Peer) -> None:
    topic = "PyRequestsJava"
    create_topic(company, topic, queues=2)
    rows = company.client.answer("java_answers", topic, count=COUNT, prefix="java: ")
    assert next(rows) == {"started": True}
    bodies = [f"{number}" for number in range(COUNT - 1)] + [LARGE]
    with producer(company, "py_requests") as asker:
        for body in bodies:
            reply = asker.request(topic, body.encode(), timeout_ms=TIMEOUT_MS)
            assert reply.body_bytes == f"java: {body}".encode()
            assert reply.topic.endswith("_REPLY_TOPIC")
    assert list(rows) == [{"failures": []}]


@beside_java()
def test_requests_of_java_are_answered_by_our_client(company: Peer) -> None:
    topic = "JavaRequestsPy"
    create_topic(company, topic, queues=2)
    bodies = [f"{number}" for number in range(COUNT - 1)] + [LARGE]
    with producer(company, "py_replies") as replier:

        def answer(message: ReceivedMessage) -> None:
            replier.reply_to(message, b"py: " + message.body_bytes, timeout_ms=TIMEOUT_MS)

        with push(company, "py_answers_java", Seen(), answer=answer).subscribe(topic):
            replies = company.client.request(topic, bodies, timeout_ms=TIMEOUT_MS)
    assert [base64.b64decode(row["body"]).decode() for row in replies] == [f"py: {body}" for body in bodies]
