"""Checks: wrong uses of running and closed clients, of administration, and of stores that share one with a writer
(``mode="auto"``) are refused by an error of our family, and change nothing. A row is a call, its error and a part
of the text. Types of administration's arguments: ``admin/test_argument_types.py``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import cometmq
import cometmq.admin
from cometmq import (
    BrokerError,
    ClientStateError,
    HandoffRejected,
    InvalidArgument,
    InvalidTopic,
    NotFound,
    OffsetOutOfRange,
    ReadOnlyStore,
    RouteNotFound,
    StoreClosed,
    TopicNotFound,
    WrongType,
    aio,
)
from cometmq.client import (
    ConsumeFromWhere,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from cometmq.testing import cluster
from support.small_store import open_small
from support.wrong_uses import call

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shared") / "s"
    with ExitStack() as life:
        running = life.enter_context(cluster())
        network: dict[str, Any] = {"name_servers": running.name_server_address}
        admin = life.enter_context(cometmq.admin.connect(namesrv=running.name_server_address))
        admin.topics.create("t", queues=1)
        producer = life.enter_context(Producer("p", **network))
        producer.send("t", b"1")
        push = PushConsumer("push", listener=lambda message: None, **network)
        push.subscribe("t")
        pull = life.enter_context(PullConsumer("pull", **network))
        queue = pull.queues("t")[0]
        pull.assign([queue])
        simple = SimpleConsumer("simple", consume_from_where=FIRST, **network)
        simple.subscribe("t")
        closed_producer, closed_pull = Producer("p2", **network), PullConsumer("pull2", **network)
        closed_push = PushConsumer("push2", listener=lambda message: None, **network)
        closed_simple = SimpleConsumer("simple2", **network)
        for one in (closed_producer, closed_pull, closed_push, closed_simple):
            with one:
                pass
        writer = life.enter_context(open_small(folder))
        writer.append_many("t", [b"1", b"2", b"3", b"4", b"5"])
        closed_store = open_small(folder, mode="auto")
        closed_store.close()
        yield {
            "a": aio.AsyncStore.wrap(closed_store),
            "admin": admin,
            "aio": aio,
            "cometmq": cometmq,
            "closed_producer": closed_producer,
            "closed_pull": closed_pull,
            "closed_push": closed_push,
            "closed_simple": closed_simple,
            "closed_store": closed_store,
            "f": life.enter_context(open_small(folder, mode="auto")),
            "network": network,
            "producer": producer,
            "pull": pull,
            "push": life.enter_context(push),
            "q": queue,
            "simple": life.enter_context(simple),
            "writer": writer,
        }


ENCODE = "a body is bytes, not str; encode a text first: text.encode()"
NO_QUEUE = "'x' is not a MessageQueue"
SHARED = 'is shared (mode="auto"), and only its writer can do this'
ROWS: list[tuple[str, type[cometmq.Error], str]] = [
    ('producer.send(5, b"x")', InvalidArgument, "a topic is text, not int"),
    ('producer.send("t", "x")', WrongType, ENCODE),
    ('producer.send("t", b"x", queue=5)', InvalidArgument, "queue is 5; give a MessageQueue"),
    ('producer.send("t", b"x", selector=5)', InvalidArgument, "selector is 5, which cannot be called"),
    ('producer.send("t", b"x", selector=dict)', InvalidArgument, "selector is the class dict: give an instance of it"),
    ('producer.send("t", b"x", timeout_ms="x")', InvalidArgument, "timeout_ms is 'x': it must be a whole number"),
    ('producer.send("t", b"x", delay_level=99)', InvalidArgument, "delay_level is 99; expected 1 (1 s) to 18 (2 h)"),
    ('producer.send_async("t", "x")', WrongType, ENCODE),
    ('producer.send_async(None, b"x")', InvalidArgument, "a topic is text, not NoneType"),
    ('producer.send_async("t", b"x", delay_ms=-1)', InvalidArgument, "delay_ms is -1: it must not be below 0"),
    ('producer.send_oneway("t", "x")', WrongType, ENCODE),
    ('producer.send_oneway(None, b"x")', InvalidArgument, "a topic is text, not NoneType"),
    ('producer.send_many("t")', WrongType, "messages is one str; give a list of messages or bodies, or call send"),
    ("producer.send_batch(5)", InvalidArgument, "send_batch() was given 5: it takes messages"),
    ('producer.request("t", "x")', WrongType, ENCODE),
    ('producer.request(None, b"x")', InvalidArgument, "a topic is text, not NoneType"),
    ('producer.request("t", b"x", timeout_ms=0)', InvalidArgument, "timeout_ms is 0: it must not be below 1"),
    ('producer.request_async("t", "x")', WrongType, ENCODE),
    ('producer.reply_to(5, b"x")', InvalidArgument, "reply_to() was given 5: it takes a message that a consumer"),
    ("producer.start()", ClientStateError, "producer group p cannot start: it is running; it is started once only"),
    ('closed_producer.send("t", b"x")', ClientStateError, "producer group p2 is closed: make a new one"),
    ("closed_producer.start()", ClientStateError, "producer group p2 cannot start: it is closed; make a new one"),
    ('push.subscribe("t", "a && b")', InvalidArgument, "has '&&', which has no meaning there"),
    ("push.unsubscribe(5)", InvalidTopic, "the topic is 5: a topic is text"),
    ("push.progress(5)", InvalidTopic, "the topic is 5: a topic is text"),
    ("push.start()", ClientStateError, "consumer group push cannot start: it is running; it is started once only"),
    ("push.listener(5)", ClientStateError, "consumer group push is running: give the listener before start()"),
    ("push.batch_listener(5)", ClientStateError, "consumer group push is running: give the listener before start()"),
    ('push.close(timeout_ms="x")', InvalidArgument, "timeout_ms is 'x': it must be a whole number"),
    ("push.close(timeout_ms=-1)", InvalidArgument, "timeout_ms is -1: it must not be below 0"),
    ("closed_push.suspend()", ClientStateError, "consumer group push2 is closed"),
    ("closed_push.resume()", ClientStateError, "consumer group push2 is closed"),
    ('closed_push.progress("t")', ClientStateError, "consumer group push2 is closed"),
    ("closed_push.start()", ClientStateError, "consumer group push2 cannot start: it is closed; make a new one"),
    ("producer.close(timeout_ms=-1)", InvalidArgument, "timeout_ms is -1: it must not be below 0"),
    ('pull.close(timeout_ms="x")', InvalidArgument, "timeout_ms is 'x': it must be a whole number"),
    ("simple.close(timeout_ms=-1)", InvalidArgument, "timeout_ms is -1: it must not be below 0"),
    ('pull.poll("x")', InvalidArgument, "timeout_ms is 'x': it must be a whole number"),
    ("pull.poll(-1)", InvalidArgument, "timeout_ms is -1: it must not be below 0"),
    ('pull.seek("x", 5)', InvalidArgument, NO_QUEUE),
    ('pull.seek(q, "x")', InvalidArgument, "offset is 'x': it must be a whole number"),
    ("pull.seek(q, 99)", OffsetOutOfRange, "offset 99 of queue 0 of t at broker-a lies outside 0 to 1"),
    ('pull.seek_to_begin("x")', InvalidArgument, NO_QUEUE),
    ("pull.seek_to_end(5)", InvalidArgument, "5 is not a MessageQueue"),
    ('pull.seek_to_time("x", 0)', InvalidArgument, NO_QUEUE),
    ('pull.seek_to_time(q, "x")', InvalidArgument, "timestamp_ms is 'x': it must be a whole number"),
    ('pull.position("x")', InvalidArgument, NO_QUEUE),
    ('pull.committed("x")', InvalidArgument, NO_QUEUE),
    ('pull.min_offset("x")', InvalidArgument, NO_QUEUE),
    ('pull.max_offset("x")', InvalidArgument, NO_QUEUE),
    ('pull.search_offset("x", 0)', InvalidArgument, NO_QUEUE),
    ('pull.search_offset(q, "x")', InvalidArgument, "timestamp_ms is 'x': it must be a whole number"),
    ("pull.commit(5)", InvalidArgument, "commit() was given 5: it takes offsets by queue, {queue: offset}"),
    ('pull.commit({"x": 5})', InvalidArgument, NO_QUEUE),
    ("pull.commit({q: -1})", OffsetOutOfRange, "is negative"),
    ("pull.commit_async(5)", InvalidArgument, "commit() was given 5: it takes offsets by queue"),
    ("pull.resume(5)", InvalidArgument, "resume() was given 5: it takes queues, as queues() returns them"),
    ('pull.pause(["x"])', InvalidArgument, "pause() was given 'x': it takes queues, as queues() returns them"),
    ("pull.send_back(5)", InvalidArgument, "send_back() was given 5: it takes a message that was polled"),
    ("pull.watch_queues(5, print)", InvalidTopic, "the topic is 5: a topic is text"),
    ('pull.watch_queues("t", 5)', InvalidArgument, "the callback is 5, which cannot be called"),
    ('pull.watch_queues("t", list)', InvalidArgument, "the callback is the class list: give an instance of it"),
    ("pull.unsubscribe(5)", InvalidTopic, "the topic is 5: a topic is text"),
    ('pull.pull("x", 0)', InvalidArgument, NO_QUEUE),
    ("pull.pull(q, -1)", InvalidArgument, "offset is -1: it must not be below 0"),
    ("pull.queues(5)", InvalidTopic, "the topic is 5: a topic is text"),
    ('pull.queues("nope")', RouteNotFound, "no name server knows topic nope: check the name, or create it"),
    ('pull.assign(["x"])', InvalidArgument, "assign() was given 'x': it takes queues"),
    ("pull.start()", ClientStateError, "the pull consumer of group pull cannot start: it is running"),
    ("pull.close(commit=5)", WrongType, "commit must be True or False, not int (5)"),
    ("closed_pull.poll()", ClientStateError, "the pull consumer of group pull2 is closed: make a new one"),
    ('simple.receive("x")', InvalidArgument, "max_messages is 'x': it must be a whole number"),
    ("simple.receive(0)", InvalidArgument, "max_messages is 0: it must be from 1 to 1,024"),
    ("simple.ack(5)", InvalidArgument, "ack() was given 5: it takes a message that receive() returned"),
    ("simple.ack_many(5)", InvalidArgument, "ack_many() was given 5: it takes messages that receive() returned"),
    ("simple.extend(5, invisible_s=10)", InvalidArgument, "extend() was given 5: it takes a message that receive()"),
    ("simple.handling(5).__enter__()", InvalidArgument, "handling() was given 5: it takes a message that receive()"),
    ("simple.unsubscribe(5)", InvalidTopic, "the topic is 5: a topic is text"),
    ("simple.start()", ClientStateError, "the simple consumer of group simple cannot start: it is running"),
    ("closed_simple.receive(1)", ClientStateError, "the simple consumer of group simple2 is closed: make a new one"),
    ('admin.topics.create("t")', InvalidArgument, "topic t already exists on broker-a"),
    ('admin.topics.create("u", queues=0)', InvalidArgument, "queues is 0, expected at least 1"),
    ('admin.topics.create("u", perm="rw")', WrongType, "perm must be an int, not str ('rw')"),
    ('admin.topics.update("t", queues="x")', WrongType, "queues must be an int, not str ('x')"),
    ('admin.topics.update("nope", queues=1)', BrokerError, "topic nope does not exist"),
    ('admin.topics.delete("nope")', BrokerError, "topic nope does not exist"),
    ('admin.topics.describe("nope")', BrokerError, "topic nope does not exist"),
    ('admin.topics.groups("nope")', BrokerError, "topic nope does not exist"),
    ('admin.groups.create("g9", retry_max_times="x")', WrongType, "retry_max_times must be an int, not str ('x')"),
    ('admin.groups.create("g9", retry_max_times=-5)', InvalidArgument, "redeliveries must be at least -1"),
    ('admin.groups.update("nope")', NotFound, "no broker has a group nope: check the name, or create it"),
    ('admin.groups.delete("nope")', NotFound, "no broker has a group nope: check the name"),
    ('admin.groups.describe("nope")', NotFound, "no broker has a group nope: check the name, or create it"),
    ('admin.groups.running_info("nope", "x")', BrokerError, "not online"),
    ('admin.groups.set_consume_mode("g", "t", "pop")', WrongType, "mode must be MessageRequestMode.PULL or "),
    ('admin.messages.at("t", "x", 0)', WrongType, "queue_id must be an int, not str ('x')"),
    ('admin.messages.at("t", 0, 99)', NotFound, "queue 0 of topic t at broker-a has no message 99"),
    ('admin.messages.by_id("x")', InvalidArgument, "an offset message id has 32 or 56 hexadecimal digits, not 1"),
    ('admin.messages.by_key("t", "k", limit=0)', InvalidArgument, "limit is 0, expected at least 1"),
    ('admin.messages.trace("x", limit=0)', InvalidArgument, "limit is 0, expected at least 1"),
    ('admin.messages.peek("t", limit=0)', InvalidArgument, "limit is 0, expected at least 1"),
    ('admin.messages.peek("t", tags="a && b")', InvalidArgument, "'&&' has no meaning there"),
    ('admin.messages.sender("t", limits=5)', WrongType, "limits must be SendLimits, not int (5)"),
    ('admin.offsets.at_time("t", "x")', WrongType, "timestamp_ms must be an int, not str ('x')"),
    ('admin.offsets.reset("g", "t")', InvalidArgument, "reset needs a time or an offset"),
    ('admin.offsets.reset("g", "t", timestamp_ms="x")', WrongType, "timestamp_ms must be an int, not str ('x')"),
    ('admin.offsets.skip("g", "nope")', BrokerError, "topic nope does not exist"),
    ('admin.cluster.broker_config(broker_name="nope")', NotFound, "no broker nope is registered"),
    ("admin.cluster.set_broker_config({})", InvalidArgument, "no settings to change were given"),
    ('admin.cluster.set_broker_config({"deleteWhen": 4})', WrongType, "the value of deleteWhen must be a str"),
    ('admin.cluster.set_broker_config({"fileReservedTime": "x"})', BrokerError, "'x' is not a whole number"),
    ('admin.cluster.set_broker_config({"listenPort": "5"})', BrokerError, "cannot be changed while the broker runs"),
    ('admin.cluster.set_broker_config({"nope": "5"})', BrokerError, "nope: there is no such setting"),
    ('admin.cluster.set_broker_config({"useTLS": "true"})', BrokerError, "CometMQ has no use for it"),
    ('admin.cluster.set_namesrv_config({"x": "y"})', BrokerError, "change it in the server's configuration file"),
    ("admin.cluster.clean()", InvalidArgument, "specify what to clean: queues, log or unused topics"),
    ('admin.cluster.forget("nope")', NotFound, "no broker nope is lost"),
    ("cometmq.admin.connect(namesrv=5)", WrongType, "namesrv must be a str, not int (5): write host:port"),
    ("cometmq.admin.connect(broker=5)", WrongType, "broker must be a str, not int (5): write host:port"),
    ('cometmq.admin.connect(broker="x")', InvalidArgument, "'x' is not an address: write host:port"),
    ('cometmq.admin.connect(namesrv="a:1", broker="b:1")', InvalidArgument, "give name servers or a broker, not both"),
    ('f.append("t", "x")', WrongType, "bodies[0] must be bytes-like, not str: encode it"),
    ('f.append("t", b"x", queue=7)', HandoffRejected, "queue[0] is 7, outside 0 to 0"),
    ('f.append("a b", b"x")', InvalidTopic, "has characters other than letters, digits"),
    ('f.append_many("t", 5)', WrongType, "bodies must be a list or an array of bodies, not int"),
    ('f.append_many("t", [b"a"], tags=["a", "b"])', InvalidArgument, "must be of one length, not 2 and 1"),
    ('f.read("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('f.get("t", 0, 99)', OffsetOutOfRange, "queue offset 99 is outside the queue, which holds [0, 5)"),
    ('f.get("t", "x", 0)', WrongType, "queue must be an int, not str ('x')"),
    ('f.find("t", 5)', WrongType, "key must be a str, not int (5)"),
    ('f.wait("x")', WrongType, "seen_end must be an int, not str ('x')"),
    ('f.scan("t", limit=0)', InvalidArgument, "limit is 0; it must be 1 to"),
    ('f.consumer(None, "t")', WrongType, "group must be a str, not NoneType (None)"),
    ('f.consumer("g", "nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('f.create_topic("t")', InvalidArgument, "the topic t exists already; give exist_ok=True if that is fine"),
    ('f.create_topic("u", perm=9)', InvalidArgument, "perm is 9: give 6 for read and write"),
    ('f.set_topic_queues("nope", 1)', TopicNotFound, "there is no topic 'nope' in"),
    ('f.delete_topic("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('f.delete_group("nope")', NotFound, "there is no consumer group 'nope'"),
    ('f.set_progress("g", "t", 0, 99)', OffsetOutOfRange, "offset 99 is behind the end of t/0"),
    ('f.commit_progress("g", 5)', WrongType, "offsets must be a dict {(topic, queue): offset}, not int"),
    ('f.hand_off("t", ["a"])', WrongType, "bodies[0] must be bytes-like, not str: encode it"),
    ("f.expire()", ReadOnlyStore, SHARED),
    ('f.restore_removed("x")', ReadOnlyStore, SHARED),
    ('closed_store.append("t", b"x")', StoreClosed, "is closed"),
    ('closed_store.append_many("t", [b"x"])', StoreClosed, "is closed"),
    ('closed_store.read("t")', StoreClosed, "is closed"),
    ('closed_store.create_topic("u")', StoreClosed, "is closed"),
    ('closed_store.delete_topic("t")', StoreClosed, "is closed"),
    ('closed_store.consumer("g", "t")', StoreClosed, "is closed"),
    ('closed_store.set_progress("g", "t", 0, 0)', StoreClosed, "is closed"),
    ("closed_store.maintain()", StoreClosed, "is closed"),
    ("closed_store.info()", StoreClosed, "is closed"),
    ("a.maintain()", StoreClosed, "is closed"),
    ("aio.AsyncStore.wrap(5)", WrongType, "store must be a cometmq.Store, not int (5)"),
]


@pytest.mark.parametrize(("text", "kind", "part"), ROWS, ids=[row[0] for row in ROWS])
def test_a_wrong_use_is_refused(names: dict[str, Any], text: str, kind: type[cometmq.Error], part: str) -> None:
    with pytest.raises(cometmq.Error) as caught:
        call(text, names)
    assert type(caught.value) is kind
    assert part in str(caught.value)
    assert names["writer"].topics() == ["t"]
    assert names["writer"].max_offset("t", 0) == 5
    assert not {"nope", "u"} & {*names["admin"].topics.list()}


NO_WRONG_USE = {
    "close": "without arguments: twice is fine",
    "flush": "without arguments",
    "groups": "without arguments",
    "info": "without arguments",
    "opening": "without arguments",
    "apply_handoffs": "without arguments",
    "topics": "a flag alone",
    "committed": "a consumer's own queues",
    "assignment": "empty where nothing is assigned, also after the close",
    "run": "blocks until a signal; its start is start()'s",
}
"""Public functions that need no row, and why."""


def functions() -> Iterator[tuple[str, str]]:
    kinds = {
        cometmq.Store: ("s", "r", "f"),
        aio.AsyncStore: ("a", "AsyncStore", "f"),
        cometmq.Consumer: ("c", "closed"),
        Producer: ("producer", "started", "closed_producer"),
        PushConsumer: ("push", "closed_push"),
        PullConsumer: ("pull", "closed_pull"),
        SimpleConsumer: ("simple", "closed_simple"),
    }
    for kind, handles in kinds.items():
        for name, value in inspect.getmembers(kind, callable):
            if not name.startswith("_") and not inspect.isclass(value) and name not in NO_WRONG_USE:
                yield name, "|".join(handles)


@pytest.mark.parametrize(("name", "handles"), list(functions()))
def test_every_public_function_has_a_row(name: str, handles: str) -> None:
    tables = Path(__file__).parent.glob("test_wrong_uses*.py")
    assert any(re.search(rf"\b({handles})\.{name}\(", table.read_text()) for table in tables)
