"""Checks: wrong uses of clients are refused by an error of our family, whose text names the argument, its value and the
remedy. A row is a call, its error and a part of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cometmq
from cometmq import ClientStateError, InvalidArgument, InvalidTopic, WrongType
from cometmq.client import Interceptor, TransactionProducer
from cometmq.client.group.allocation import Averagely, ConsistentHash, MachineRoomNearby
from support.wrong_uses import check_refused, world


class Hook:
    """An application's hook of any kind, whose class is given where an object is wanted."""

    name = "HOOK"

    def __call__(self, *given: object) -> None:
        """Do nothing."""

    def allocate(self, *given: object) -> list[object]:
        """Return no queue."""
        return []

    def load(self, queue: object) -> None:
        """Return no offset."""

    def save(self, offsets: object) -> None:
        """Keep nothing."""

    def before_request(self, *given: object) -> None:
        """Do nothing."""

    def after_answer(self, *given: object) -> None:
        """Do nothing."""


class Awaited:
    """A hook whose call has to be awaited."""

    async def __call__(self, *given: object) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with world(tmp_path_factory.mktemp("wrong")) as found:
        yield {
            **found,
            "Averagely": Averagely,
            "Awaited": Awaited,
            "ConsistentHash": ConsistentHash,
            "Hook": Hook,
            "Interceptor": Interceptor,
            "MachineRoomNearby": MachineRoomNearby,
            "ThreadPoolExecutor": ThreadPoolExecutor,
            "TransactionProducer": TransactionProducer,
        }


ROWS: list[tuple[str, type[cometmq.Error], str]] = [
    ("Producer(None, **network).start()", InvalidArgument, "group is None: a group needs a name"),
    ('Producer("", **network).start()', InvalidArgument, "group is '': a group needs a name"),
    ("Producer(5, **network).start()", InvalidArgument, "group is 5: a group needs a name"),
    (
        'Producer("a b", **network).start()',
        InvalidArgument,
        "the group name 'a b' has characters other than letters, digits, %, |, - and _",
    ),
    (
        'Producer("g", retries=3)',
        InvalidArgument,
        "there is no option 'retries'; did you mean retry_times_when_send_failed?",
    ),
    ('Producer("g", timeout=3)', InvalidArgument, "there is no option 'timeout'; did you mean send_msg_timeout_ms?"),
    ('Producer("g", zzz=3)', InvalidArgument, "there is no option 'zzz'; all of them:"),
    (
        'Producer("g", name_servers=5)',
        InvalidArgument,
        "name_servers is 5: write 'host:9876', several with ';' between them",
    ),
    ('Producer("g", name_servers="nowhere")', InvalidArgument, "'nowhere' is not an address: write host:port"),
    (
        'Producer("g", name_servers="h:99999")',
        InvalidArgument,
        "'h:99999' is not an address: the port is a number from 0 to 65535",
    ),
    (
        'Producer("g", send_msg_timeout_ms="x", **network).start()',
        InvalidArgument,
        "send_msg_timeout_ms is 'x': it must be a whole number",
    ),
    (
        'Producer("g", send_msg_timeout_ms=-1, **network).start()',
        InvalidArgument,
        "send_msg_timeout_ms is -1: it must be from 1 to 2147483647",
    ),
    (
        'Producer("g", compress_msg_body_over_how_much=-1, **network).start()',
        InvalidArgument,
        "there is no option 'compress_msg_body_over_how_much'; did you mean",
    ),
    (
        'Producer("g", vip_channel_enabled="x", **network).start()',
        InvalidArgument,
        "vip_channel_enabled is 'x': it must be True or False",
    ),
    (
        'Producer("g", interceptors=5, **network).start()',
        InvalidArgument,
        "Producer() was given 5: it takes interceptors=[Interceptor(...), ...]",
    ),
    (
        'Producer("g", interceptors=[print], **network)',
        InvalidArgument,
        "Producer(interceptors=...) was given <built-in function print>: it takes interceptors=[",
    ),
    (
        'PushConsumer("g", listener=print, interceptors=[print], **network)',
        InvalidArgument,
        "PushConsumer(interceptors=...) was given <built-in function print>: it takes interceptors=[",
    ),
    (
        'PullConsumer("g", interceptors=[print], **network).start()',
        InvalidArgument,
        "PullConsumer(interceptors=...) was given <built-in function print>: it takes interceptors=[",
    ),
    (
        'Producer("g", rpc_hooks=5, **network).start()',
        InvalidArgument,
        "rpc_hooks is 5: give a list of hooks, each with the methods before_request and",
    ),
    (
        'Producer("g", rpc_hooks=[Hook], **network).start()',
        InvalidArgument,
        "rpc_hooks has the class Hook: give an instance of it, Hook(...)",
    ),
    (
        'Producer("g", interceptors=[Interceptor], **network)',
        InvalidArgument,
        "Interceptor'>: it takes interceptors=[Interceptor(...), ...]",
    ),
    (
        "Interceptor(before_send=Hook)",
        InvalidArgument,
        "Interceptor(before_send=...) is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        "Interceptor(keep_message=Awaited())",
        InvalidArgument,
        "Interceptor(keep_message=...) is an `async def`, which nobody would await: give a plain function",
    ),
    (
        'TransactionProducer("g", checker=Hook, **network)',
        InvalidArgument,
        "checker is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        'TransactionProducer("g", checker=print, executor=ThreadPoolExecutor, **network)',
        InvalidArgument,
        "executor is the class ThreadPoolExecutor: give an instance of it, ThreadPoolExecutor(...)",
    ),
    (
        'TransactionProducer("g", checker=print, executor=5, **network)',
        InvalidArgument,
        "executor is 5: give a concurrent.futures.Executor",
    ),
    (
        'PushConsumer("g", listener=Hook, **network)',
        InvalidArgument,
        "the listener is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        'PullConsumer("g", offset_store=Hook, **network)',
        InvalidArgument,
        "offset_store is the class Hook: give an instance of it, Hook(...)",
    ),
    (
        'aio.TransactionProducer("g", checker=Hook, **network)',
        InvalidArgument,
        "checker is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        'aio.TransactionProducer("g", checker=print, executor=ThreadPoolExecutor, **network)',
        InvalidArgument,
        "executor is the class ThreadPoolExecutor: give an instance of it, ThreadPoolExecutor(...)",
    ),
    (
        'aio.TransactionProducer("g", checker=print, executor=5, **network)',
        InvalidArgument,
        "executor is 5: give a concurrent.futures.Executor",
    ),
    (
        'aio.PushConsumer("g", listener=Hook, **network)',
        InvalidArgument,
        "the listener is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        'aio.PullConsumer("g", offset_store=Hook, **network)',
        InvalidArgument,
        "offset_store is the class Hook: give an instance of it, Hook(...)",
    ),
    (
        'PushConsumer("g", batch_listener=Hook, **network)',
        InvalidArgument,
        "the listener is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        'PushConsumer("g", listener=5, **network)',
        InvalidArgument,
        "the listener is 5, which cannot be called: give a function",
    ),
    (
        'PushConsumer("g", **network).listener(Hook)',
        InvalidArgument,
        "the listener is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        'PushConsumer("g", **network).batch_listener(5)',
        InvalidArgument,
        "the listener is 5, which cannot be called: give a function",
    ),
    (
        'PushConsumer("g", listener=print, queue_listener=Hook, **network)',
        InvalidArgument,
        "queue_listener is the class Hook: give an instance of it, Hook(...), or a function",
    ),
    (
        'PushConsumer("g", listener=print, queue_listener=5, **network)',
        InvalidArgument,
        "queue_listener is 5, which cannot be called: give a function",
    ),
    (
        'PushConsumer("g", listener=print, queue_listener=Awaited(), **network)',
        InvalidArgument,
        "queue_listener is an `async def`, which nobody would await: give a plain function",
    ),
    (
        'PushConsumer("g", listener=print, executor=ThreadPoolExecutor, **network)',
        InvalidArgument,
        "executor is the class ThreadPoolExecutor: give an instance of it, ThreadPoolExecutor(...)",
    ),
    (
        'PushConsumer("g", listener=print, executor=5, **network)',
        InvalidArgument,
        "executor is 5: give a concurrent.futures.Executor",
    ),
    (
        'PushConsumer("g", listener=print, offset_store=Hook, **network)',
        InvalidArgument,
        "offset_store is the class Hook: give an instance of it, Hook(...)",
    ),
    (
        'PushConsumer("g", listener=print, offset_store=5, **network)',
        InvalidArgument,
        "offset_store is 5, without load(): give an object with load and save",
    ),
    (
        'PushConsumer("g", listener=print, allocate_strategy=Averagely, **network).start()',
        InvalidArgument,
        "allocate_strategy is the class Averagely: give an instance of it, Averagely(...)",
    ),
    (
        'PullConsumer("g", allocate_strategy=Hook, **network).start()',
        InvalidArgument,
        "allocate_strategy is the class Hook: give an instance of it, Hook(...)",
    ),
    (
        "MachineRoomNearby(Averagely, Hook())",
        InvalidArgument,
        "inner is the class Averagely: give an instance of it, Averagely(...)",
    ),
    (
        "MachineRoomNearby(Averagely(), Hook)",
        InvalidArgument,
        "room_of is the class Hook: give an instance of it, Hook(...)",
    ),
    (
        "ConsistentHash(hash_function=5)",
        InvalidArgument,
        "hash_function is 5, which cannot be called: give a function",
    ),
    (
        'Producer("g", instance_name="", **network).start()',
        InvalidArgument,
        "instance_name is '': it is a text that is not empty",
    ),
    ('started.send_batch([], topic="o")', InvalidArgument, "a batch needs at least one message"),
    ("started.send_batch([])", InvalidArgument, "a batch needs at least one message"),
    (
        'started.send(OutgoingMessage(b"x"))',
        InvalidArgument,
        "the message has no topic: OutgoingMessage(body, topic=...)",
    ),
    (
        'started.send("o", OutgoingMessage(b"x"))',
        InvalidArgument,
        "a message brings its own topic: send(OutgoingMessage(body, topic=...))",
    ),
    ('started.send_many(b"ab", topic="o")', WrongType, "messages is one bytes; give a list of messages or bodies"),
    ('started.send_many(5, topic="o")', WrongType, "messages is one int; give a list of messages or bodies"),
    ('started.send("o", b"x", tags="\\ud800")', InvalidArgument, "surrogates"),
    ('started.send("o", b"x", properties={"k": "\\ud800"})', InvalidArgument, "surrogates"),
    ('OutgoingMessage("orders", b"x")', WrongType, "a body is bytes, not str"),
    ('OutgoingMessage("x")', WrongType, "OutgoingMessage(body, topic=...)"),
    ("OutgoingMessage(None)", WrongType, "a body is bytes, not NoneType"),
    ("closed_admin.topics.list()", ClientStateError, "the session is closed: make a new one"),
    (
        'PushConsumer("g", listener=print, consume_thread_max=0, **network).start()',
        InvalidArgument,
        "consume_thread_max is 0: it must be from 1 to 1000",
    ),
    ('producer.send("t", b"x")', ClientStateError, "producer group g is not started: call start() first"),
    (
        'PushConsumer("g", consume_from="x")',
        InvalidArgument,
        "there is no option 'consume_from'; did you mean consume_from_where?",
    ),
    ('PushConsumer("g", threads=5)', InvalidArgument, "there is no option 'threads'; did you mean consume_thread_max?"),
    ('PushConsumer("g", listener=5, **network).start()', InvalidArgument, "the listener is 5, which cannot be called"),
    ('PushConsumer("g", orderly="no", **network)', InvalidArgument, "orderly is 'no': it must be True or False"),
    ('PushConsumer("g", auto_commit=None, **network)', InvalidArgument, "auto_commit is None: it must be True"),
    (
        'PushConsumer("g", **network).start()',
        InvalidArgument,
        "there is no listener: give listener= or batch_listener=, or use @consumer.listener",
    ),
    (
        'PushConsumer("g", message_model="x", listener=print, **network).start()',
        InvalidArgument,
        "message_model is 'x': give one of BROADCASTING, CLUSTERING",
    ),
    (
        'PushConsumer("g", consume_thread_min=0, listener=print, **network).start()',
        InvalidArgument,
        "consume_thread_min is 0: it must be from 1 to 1000",
    ),
    (
        'push.subscribe("t", "a && b")',
        InvalidArgument,
        "the expression 'a && b' for 't' has '&&', which has no meaning there and would",
    ),
    (
        'push.subscribe("t", "a = \'x\' and b")',
        InvalidArgument,
        "has '=', which has no meaning there and would match",
    ),
    (
        'push.subscribe("t", "a = 5")',
        InvalidArgument,
        "the expression 'a = 5' for 't' has '=', which has no meaning there and would match",
    ),
    ('push.subscribe("t", 5)', InvalidArgument, "the expression for 't' is 5: it is one text, as 'tagA || tagB'"),
    (
        'push.subscribe("t", ["a"])',
        InvalidArgument,
        "the expression for 't' is ['a']: it is one text, as 'tagA || tagB'",
    ),
    (
        'push.subscribe("t", "a", expression_type="SQL")',
        InvalidArgument,
        "expression_type is 'SQL': write 'TAG' or 'SQL92'",
    ),
    (
        'push.subscribe("t", "", expression_type="SQL92")',
        InvalidArgument,
        "an SQL92 subscription of 't' needs an expression",
    ),
    (
        'push.subscribe("a b")',
        InvalidTopic,
        "the topic name 'a b' has characters other than letters, digits, %, |, - and _",
    ),
    ("push.subscribe(None)", InvalidTopic, "the topic is None: a topic is text"),
    ('push.subscribe("")', InvalidTopic, "the topic name '' is empty"),
    (
        'PullConsumer("g", max_poll=5)',
        InvalidArgument,
        "there is no option 'max_poll'; did you mean poll_name_server_interval_ms or",
    ),
    (
        'PullConsumer("g", auto_commit="x", **network).start()',
        InvalidArgument,
        "auto_commit is 'x': it must be True or False",
    ),
    (
        'PullConsumer("g", pull_batch_size=0, **network).start()',
        InvalidArgument,
        "pull_batch_size is 0: it must be from 1 to 1024",
    ),
    (
        'pull.subscribe("t", "a && b")',
        InvalidArgument,
        "the expression 'a && b' for 't' has '&&', which has no meaning there and would",
    ),
    ('pull.subscribe("t", 5)', InvalidArgument, "the expression for 't' is 5: it is one text, as 'tagA || tagB'"),
    ("pull.subscribe(None)", InvalidTopic, "the topic is None: a topic is text"),
    ("pull.assign(5)", InvalidArgument, "assign() was given 5: it takes queues, as queues() returns them"),
    ('pull.assign(["t"])', InvalidArgument, "assign() was given 't': it takes queues, as queues() returns them"),
    ('pull.poll("x")', ClientStateError, "the pull consumer of group g is not started: call start() first"),
    ("pull.pause(5)", InvalidArgument, "pause() was given 5: it takes queues, as queues() returns them"),
    ('pull.pause(["x"])', InvalidArgument, "pause() was given 'x': it takes queues, as queues() returns them"),
    ('pull.seek("x", 5)', ClientStateError, "the pull consumer of group g is not started: call start() first"),
    ("pull.commit(5)", ClientStateError, "the pull consumer of group g is not started: call start() first"),
    ('pull.pull("t", 0)', ClientStateError, "the pull consumer of group g is not started: call start() first"),
    ("pull.queues(None)", ClientStateError, "the pull consumer of group g is not started: call start() first"),
    ('SimpleConsumer("g", order=True)', InvalidArgument, "there is no option 'order'; did you mean orderly?"),
    (
        'SimpleConsumer("g", orderly="x", **network).start()',
        InvalidArgument,
        "orderly is 'x': it must be True or False",
    ),
    (
        'SimpleConsumer("g", invisible=5)',
        InvalidArgument,
        "there is no option 'invisible'; did you mean invisible_time_ms?",
    ),
    (
        'simple.subscribe("t", "a && b")',
        InvalidArgument,
        "the expression 'a && b' for 't' has '&&', which has no meaning there and would",
    ),
    ('simple.subscribe("t", 5)', InvalidArgument, "the expression for 't' is 5: it is one text, as 'tagA || tagB'"),
    ("simple.subscribe(None)", InvalidTopic, "the topic is None: a topic is text"),
    ('simple.receive("x")', ClientStateError, "the simple consumer of group g is not started: call start() first"),
    ("simple.ack(5)", ClientStateError, "the simple consumer of group g is not started: call start() first"),
    ("simple.receive(0)", ClientStateError, "the simple consumer of group g is not started: call start() first"),
]


@pytest.mark.parametrize(("text", "kind", "part"), ROWS, ids=[row[0] for row in ROWS])
def test_a_wrong_use_is_refused(names: dict[str, Any], text: str, kind: type[cometmq.Error], part: str) -> None:
    check_refused(names, text, kind, part)
