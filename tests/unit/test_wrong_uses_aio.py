"""Checks: wrong uses of a store under asyncio are refused by an error of our family, whose text names the argument, its
value and the remedy. A row is a call, its error and a part of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cometmq
from cometmq import (
    InvalidArgument,
    NotEntered,
    NotFound,
    OffsetOutOfRange,
    TopicNotFound,
    WrongType,
)
from support.wrong_uses import check_refused, world


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with world(tmp_path_factory.mktemp("wrong")) as found:
        yield found


ROWS: list[tuple[str, type[cometmq.Error], str]] = [
    (
        'aio.open("redis://x").__aenter__()',
        InvalidArgument,
        "path is 'redis://x', a URL: a store is a directory; brokers are reached by",
    ),
    ('aio.open(d+"/n").store', NotEntered, "enter the store first: async with cometmq.aio.open(...) as store"),
    (
        'aio.open(d+"/n").append("t", b"x")',
        NotEntered,
        "enter the store first: async with cometmq.aio.open(...) as store",
    ),
    (
        'a.consumer("g", "t").fetch',
        NotEntered,
        "the consumer is not open yet: async with store.consumer(...) as consumer, or",
    ),
    (
        'a.consumer("g", "t").commit',
        NotEntered,
        "the consumer is not open yet: async with store.consumer(...) as consumer, or",
    ),
    (
        'a.consumer("g", "t").closed',
        NotEntered,
        "the consumer is not open yet: async with store.consumer(...) as consumer, or",
    ),
    (
        'a.consumer("g", "t").__aiter__()',
        NotEntered,
        "the consumer is not open yet: async with store.consumer(...) as consumer, or",
    ),
    ('a.append("t", "x")', WrongType, "body must be bytes-like, not str: encode it (body.encode())"),
    ('a.append("t", b"x", keys=17)', WrongType, "keys must be a str, bytes or a list of keys, not int"),
    ('a.append_many("t", ["a"])', WrongType, "bodies[0] must be bytes-like, not str: encode it"),
    (
        'a.read("t", tags="a && b")',
        InvalidArgument,
        "tags is 'a && b': '&&' has no meaning there, only || divides tags (tags=\"a || b\");",
    ),
    ('a.read("t", queues=0)', WrongType, "queues must be a list of queue numbers, not int: queues=[0]"),
    ('a.read("t", timeout_s="x", follow=True)', WrongType, "timeout_s must be a number of seconds or None, not str"),
    ('a.follow("t", timeout_s=-1)', InvalidArgument, "timeout_s is -1; it must be 0 or more, or None for no limit"),
    ('a.scan("t", columns=5)', WrongType, "columns must be a list of column names, not int: columns=[5]"),
    ('a.get("t", "0", 0)', WrongType, "queue must be an int, not str ('0')"),
    ('a.find("t", None)', WrongType, "key must be a str, not NoneType (None)"),
    (
        'a.offset_at("t", 0, "x")',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not str ('x'); for",
    ),
    ('a.wait("x")', WrongType, "seen_end must be an int, not str ('x')"),
    ('a.wait_durable("x")', WrongType, "end must be an int, not str ('x')"),
    (
        'a.create_topic("x1", perm="rw")',
        WrongType,
        "perm must be an int, not str ('rw'): give 6 for read and write, 4 for read, 2 for",
    ),
    ('a.create_topic("x1", queues=0)', InvalidArgument, "queues is 0; it must be 1 to 65536"),
    ('a.set_topic_queues("t", 0)', InvalidArgument, "queues is 0; it must be 1 to 65536"),
    ('a.delete_topic("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('a.topic("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('a.queue("nope")', TopicNotFound, "there is no topic 'nope' in"),
    (
        'a.set_progress("g", "t", 0, 99)',
        OffsetOutOfRange,
        "offset 99 is behind the end of t/0: the next message gets offset 5",
    ),
    ('a.commit_progress("g", {("t", 9): 0})', TopicNotFound, "the topic 't' has no queue 9"),
    ('a.delete_group("nope")', NotFound, "there is no consumer group 'nope'"),
    ('a.hand_off("t", [b"a"])', InvalidArgument, "this store is the writer: append directly"),
    ("a.expire()", InvalidArgument, "the store was opened without a retention: nothing is due; give"),
    ('a.restore_removed("../x")', InvalidArgument, '"../x" is not the name of a folder under cometmq/removed'),
    ('a.transaction().append("t", ["x"])', WrongType, "body must be bytes-like, not list"),
    ('a.transaction().append("t", "x")', WrongType, "body must be bytes-like, not str: encode it"),
    ('a.append(["t"], b"x")', WrongType, "topic must be a str, not list (['t'])"),
    ('a.transaction().append(["t"], b"x")', WrongType, "topic must be a str, not list (['t'])"),
    ('a.consumer("g2", "t", timeout_s="x")', WrongType, "timeout_s must be a number of seconds or None, not str"),
    (
        'a.consumer("g2", "t", tags="a,b").__aenter__()',
        InvalidArgument,
        "tags is 'a,b': ',' has no meaning there, only || divides tags (tags=\"a || b\"); for",
    ),
    (
        'a.append("t", b"x", queue=7)',
        InvalidArgument,
        "the topic t has 1 queue, counted from 0, and no 7; set_topic_queues changes their",
    ),
    (
        'a.append_many("t", table)',
        WrongType,
        "bodies is a table or an Arrow array of structs: give one column of binary values,",
    ),
    ('a.scan("t", limit=0)', InvalidArgument, "limit is 0; it must be 1 to 9223372036854775807"),
    ('a.get_by_id("abc")', InvalidArgument, "an offset message id has 32 or 56 hexadecimal digits, not 3"),
    ('a.find_unique("nope", "x")', TopicNotFound, "there is no topic 'nope' in"),
    ("a.get_physical(-1)", InvalidArgument, "physical_offset is -1; it must be 0 to 9223372036854775807"),
    ('a.min_offset("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('a.max_offset("t", "x")', WrongType, "queue must be an int, not str ('x')"),
    ("a.queues(5)", WrongType, "topic must be a str, not int"),
    ("a.progress(5)", WrongType, "group must be a str, not int"),
]


@pytest.mark.parametrize(("text", "kind", "part"), ROWS, ids=[row[0] for row in ROWS])
def test_a_wrong_use_is_refused(names: dict[str, Any], text: str, kind: type[cometmq.Error], part: str) -> None:
    check_refused(names, text, kind, part)


@pytest.mark.parametrize(
    "text",
    [
        'aio.open(d+"/n")',
        "a.transaction()",
        'a.read("t")',
        'a.follow("t")',
        'a.consumer("with", "t")',
        "aio.Producer('g', **network)",
        "aio.TransactionProducer('g', checker=print, **network)",
        "aio.PullConsumer('g', **network)",
        "aio.PushConsumer('g', listener=print, **network)",
        "aio.SimpleConsumer('g', **network)",
    ],
)
def test_objects_of_asyncio_refuse_plain_with(names: dict[str, Any], text: str) -> None:
    made = eval(text, names)
    with pytest.raises(WrongType, match=r"this \w+ is for asyncio: use async with, not with$"), made:
        pytest.fail("it was entered")
