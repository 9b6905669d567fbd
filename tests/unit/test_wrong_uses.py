"""Checks: wrong uses of the public functions are refused by an error of our family, whose text names the argument, its
value and the remedy. A row is a call, its error and a part of the text.

The calls see one store with the topic ``t`` (a queue, five messages), opened for writing (``s``), for reading (``r``)
and for asyncio (``a``); none of them changes it.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cometmq
from cometmq import (
    ClientStateError,
    CorruptRecord,
    GroupBusy,
    InvalidArgument,
    InvalidTopic,
    NotEntered,
    NotFound,
    OffsetOutOfRange,
    ReadOnlyStore,
    StorageError,
    StoreClosed,
    StoreLocked,
    TopicNotFound,
    WrongType,
    aio,
)
from cometmq.client import Producer, PullConsumer, PushConsumer, SimpleConsumer
from cometmq.store_config.errors import SettingError, UnknownSetting
from support.command_line import run
from support.small_store import open_small


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("wrong")
    network = {"name_servers": "127.0.0.1:1"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with open_small(folder / "s") as s, open_small(folder / "s", mode="r") as r:
            s.append_many("t", [b"1", b"2", b"3", b"4", b"5"], tags="a")
            closed = s.consumer("closed", "t")
            closed.close()
            with s.consumer("g", "t") as c:
                yield {
                    **globals(),
                    "np": np,
                    "Fraction": Fraction,
                    "datetime": datetime,
                    "d": f"{folder}/",
                    "s": s,
                    "r": r,
                    "a": aio.AsyncStore.wrap(s),
                    "c": c,
                    "closed": closed,
                    "m": s.get("t", 0, 0),
                    "table": pa.table({"a": [1, 2]}),
                    "network": network,
                    "producer": Producer("g", **network),  # type: ignore[arg-type]
                    "push": PushConsumer("g", **network),  # type: ignore[arg-type]
                    "pull": PullConsumer("g", **network),  # type: ignore[arg-type]
                    "simple": SimpleConsumer("g", **network),  # type: ignore[arg-type]
                }
    finally:
        os.chdir(before)


def call(text: str, names: dict[str, Any]) -> Any:
    """Make a call, and wait where it is asyncio's."""
    result = eval(text, names)

    async def waited() -> Any:
        return await result

    return asyncio.run(waited()) if inspect.isawaitable(result) else result


ROWS: list[tuple[str, type[cometmq.Error], str]] = [
    ("cometmq.open(None)", WrongType, "path must be a str or a Path, not NoneType (None)"),
    ("cometmq.open(5)", WrongType, "path must be a str or a Path, not int"),
    ('cometmq.open("")', InvalidArgument, 'path is empty: give a directory ("." for the current one)'),
    ('cometmq.open(b"x")', WrongType, "path must be a str or a Path, not bytes (b'x')"),
    (
        'cometmq.open("redis://x")',
        InvalidArgument,
        "path is 'redis://x', a URL: a store is a directory; brokers are reached by",
    ),
    ('cometmq.open("~/x")', InvalidArgument, "path is '~/x': ~ is not expanded; pass os.path.expanduser('~/x')"),
    (
        'cometmq.open(d+"/s2", mode="w")',
        InvalidArgument,
        'mode is "a" (append and read), "r" (read) or "auto" (share), not \'w\'',
    ),
    ('cometmq.open(d+"/s2", flush="x")', InvalidArgument, 'flush is "sync" or "async", not \'x\''),
    ('cometmq.open(d+"/s2", flush=3)', InvalidArgument, 'flush is "sync" or "async", not 3'),
    ('cometmq.open(d+"/s2", config=5)', WrongType, "config must be the path of a file, not int"),
    ('cometmq.open(d+"/s2", config="nofile")', StorageError, "cannot read nofile: No such file or directory"),
    ('cometmq.open(d+"/s2", settings=5)', WrongType, "settings must be a dict of names and values, not int"),
    ('cometmq.open(d+"/s2", settings={"x":5})', UnknownSetting, "keyword arguments: x: there is no such setting"),
    ('cometmq.open(d+"/s2", settings={5:5})', WrongType, "a setting's name must be a str, not int"),
    ('cometmq.open(d+"/s2", segment_bytes=1)', InvalidArgument, "segment_bytes is 1; it must be 4096 to 2147479552"),
    (
        'cometmq.open(d+"/s2", segment_bytes=-1)',
        SettingError,
        "keyword arguments: mapped_file_size_commit_log_bytes: -1 is outside 1 to 2147483647",
    ),
    (
        'cometmq.open(d+"/s2", body_bytes_max="a")',
        SettingError,
        "keyword arguments: max_message_size_bytes: 'a' is not a whole number without unit,",
    ),
    (
        'cometmq.open(d+"/s2", body_bytes_max=-1)',
        SettingError,
        "keyword arguments: max_message_size_bytes: -1 is outside 10 to 2147483647",
    ),
    ('cometmq.open(d+"/s2", default_queues="1")', WrongType, "default_queues must be an int, not str ('1')"),
    ('cometmq.open(d+"/s2", default_queues=0)', InvalidArgument, "default_queues is 0; it must be 1 to 65536"),
    ('cometmq.open(d+"/s2", default_queues=1.5)', WrongType, "default_queues must be an int, not float (1.5)"),
    ('cometmq.open(d+"/s2", default_queues=None)', WrongType, "default_queues must be an int, not NoneType (None)"),
    ('cometmq.open(d+"/s2", retention=3)', WrongType, "retention must be a cometmq.Retention, not int"),
    ('cometmq.open(d+"/s2", retention="72h")', WrongType, "retention must be a cometmq.Retention, not str ('72h'):"),
    ('cometmq.open(d+"/s2", create="no")', WrongType, "create must be True or False, not str ('no')"),
    (
        'cometmq.open(d+"/s3", create=False)',
        NotFound,
        "check the path, or open it for writing with create, which makes one",
    ),
    ('cometmq.open(d+"/s2", background=None)', WrongType, "background must be True or False, not NoneType (None)"),
    ('cometmq.open(d+"/s")', StoreLocked, ": close the store first, or use it where it is open"),
    ('cometmq.Retention(reserved_hours="3")', WrongType, "reserved_hours must be a number, not str ('3')"),
    ("cometmq.Retention(reserved_hours=-3)", InvalidArgument, "reserved_hours is -3; it must be 0 or more"),
    ("cometmq.Retention(delete_hours=4)", WrongType, "delete_hours must be a list of hours, not int: delete_hours=[4]"),
    ("cometmq.Retention(delete_hours=(24,))", InvalidArgument, "an element of delete_hours is 24; it must be 0 to 23"),
    ('cometmq.Retention(delete_hours=("4",))', WrongType, "an element of delete_hours must be an int, not str ('4')"),
    ('cometmq.Retention(max_used_ratio="a")', WrongType, "max_used_ratio must be a number, not str ('a')"),
    (
        "cometmq.Retention(max_used_ratio=2)",
        InvalidArgument,
        "the ratios must rise: 0 < max_used_ratio <= force_ratio <= warning_ratio <= 1",
    ),
    ("cometmq.Retention(files_per_round=0)", InvalidArgument, "files_per_round is 0; it must be 1 to 1000000"),
    ('cometmq.Retention(files_per_round="x")', WrongType, "files_per_round must be an int, not str ('x')"),
    ('s.append(None,b"x")', WrongType, "topic must be a str, not NoneType (None)"),
    ('s.append("",b"x")', InvalidTopic, "the topic name '' is empty"),
    (
        's.append("a b",b"x")',
        InvalidTopic,
        "the topic name 'a b' has characters other than letters, digits, %, |, - and _",
    ),
    ('s.append(b"t",b"x")', WrongType, "topic must be a str, not bytes (b't')"),
    ('s.append(["t"],b"x")', WrongType, "topic must be a str, not list (['t'])"),
    ('s.append("t","x")', WrongType, "body must be bytes-like, not str: encode it (body.encode())"),
    ('s.append("t",None)', WrongType, "body must be bytes-like, not NoneType"),
    ('s.append("t",5)', WrongType, "body must be bytes-like, not int"),
    ('s.append("t",{"a":1})', WrongType, "body must be bytes-like, not dict"),
    ('s.append("t",b"x",tags=5)', WrongType, "tags must be str or bytes, not int"),
    ('s.append("t",b"x",tags=["a"])', WrongType, "tags must be str or bytes, not list (['a'])"),
    (
        's.append("t",b"x",tags="a || b")',
        InvalidArgument,
        "tags is 'a || b': a message has one tag, and || divides tags where they are asked",
    ),
    (
        's.append("t",b"x",tags=" a")',
        InvalidArgument,
        "tags is ' a': blanks around a tag are taken off where it is asked for, so that no",
    ),
    ('s.append("t",b"x",keys=17)', WrongType, "keys must be a str, bytes or a list of keys, not int"),
    ('s.append("t",b"x",keys=[17])', WrongType, "keys contains 17, of type int; a key must be str or bytes"),
    (
        's.append("t",b"x",keys=["a b"])',
        InvalidArgument,
        "keys: the key 'a b' is empty or holds a space, which divides keys",
    ),
    ('s.append("t",b"x",properties=5)', WrongType, "properties must be a mapping of names to values, not int"),
    ('s.append("t",b"x",properties=["a"])', WrongType, "properties must be a mapping of names to values, not list"),
    ('s.append("t",b"x",properties={"a":5})', WrongType, "the property 'a' must be str or bytes, not int"),
    ('s.append("t",b"x",properties={5:"a"})', WrongType, "a property's name must be str or bytes, not int"),
    (
        's.append("t",b"x",properties={"TAGS":"a"})',
        InvalidArgument,
        "give TAGS as the argument tags, not among the properties",
    ),
    (
        's.append("t",b"x",queue=5)',
        InvalidArgument,
        "the topic t has 1 queue, counted from 0, and no 5; set_topic_queues changes their",
    ),
    (
        's.append("t",b"x",queue=-1)',
        InvalidArgument,
        "the topic t has 1 queue, counted from 0, and no -1; set_topic_queues changes their",
    ),
    ('s.append("t",b"x",queue="0")', WrongType, "queue must be an int, not str ('0')"),
    (
        's.append("t",b"x",queue=True)',
        InvalidArgument,
        "the topic t has 1 queue, counted from 0, and no 1; set_topic_queues changes their",
    ),
    ('s.append("t",b"x",flag="x")', WrongType, "flag must be an int, not str ('x')"),
    ('s.append("t",b"x",flag=2**40)', InvalidArgument, "flag is 1099511627776; it must be -2147483648 to 2147483647"),
    ('s.append("t",b"x",born_timestamp_ms="x")', WrongType, "born_timestamp_ms must be an int, not str ('x')"),
    (
        's.append("t",b"x",born_timestamp_ms=datetime.datetime.now())',
        WrongType,
        "born_timestamp_ms must be an int, not datetime (",
    ),
    ('s.append_many("t",["a"])', WrongType, "bodies[0] must be bytes-like, not str: encode it"),
    (
        's.append_many("t",pa.array(["a"]))',
        WrongType,
        "bodies is an Arrow array of text; a body must be bytes: encode it",
    ),
    ('s.append_many("t",np.array(["a"]))', WrongType, "bodies[0] must be bytes-like, not str: encode it"),
    (
        's.append_many("t",np.array([1,2]))',
        WrongType,
        "bodies must be a list, an Arrow array or a numpy array of fixed-width bytes (dtype",
    ),
    ('s.append_many("t",b"abc")', WrongType, "bodies is one bytes; give a list or an array of bodies, or call append"),
    ('s.append_many("t","abc")', WrongType, "bodies is one str; give a list or an array of bodies, or call append"),
    ('s.append_many("t",None)', WrongType, "bodies must be a list or an array of bodies, not None"),
    ('s.append_many("t",5)', WrongType, "bodies must be a list or an array of bodies, not int"),
    (
        's.append_many("t",table)',
        WrongType,
        "bodies is a table or an Arrow array of structs: give one column of binary values,",
    ),
    ('s.append_many("t",[None])', WrongType, "bodies[0] must be bytes-like, not NoneType"),
    ('s.append_many("t",{"a":b"b"})', WrongType, "bodies must be a list or an array of bodies, not dict"),
    (
        's.append_many("t",pa.array([1,2]))',
        WrongType,
        "bodies must hold binary values, not the Arrow type of format 'l'",
    ),
    (
        's.append_many("t",pa.array([{"a":1}]))',
        WrongType,
        "bodies is a table or an Arrow array of structs: give one column of binary values,",
    ),
    (
        's.append_many("t",pa.array([b"a",None]))',
        InvalidArgument,
        "bodies[1] is null; a message needs a body, which may be empty",
    ),
    ('s.append_many("t",[b"a"],tags=["a","b"])', InvalidArgument, "tags and bodies must be of one length, not 2 and 1"),
    (
        's.append_many("t",[b"a"],tags=5)',
        WrongType,
        "tags must be one text for all messages, or a list or an array with an element per",
    ),
    (
        's.append_many("t",[b"a"],keys=5)',
        WrongType,
        "keys must be one text for all messages, or a list or an array with an element per",
    ),
    ('s.append_many("t",[b"a"],keys=[5])', WrongType, "keys[0] must be str, bytes or None, not int"),
    ('s.append_many("t",[b"a"],keys=["a","b"])', InvalidArgument, "keys and bodies must be of one length, not 2 and 1"),
    (
        's.append_many("t",[b"a"],properties=5)',
        WrongType,
        "properties must be a mapping or a list of mappings, not int",
    ),
    ('s.append_many("t",[b"a"],properties=[5])', WrongType, "properties[0] must be a mapping or None, not int"),
    (
        's.append_many("t",[b"a"],properties=[{},{}])',
        InvalidArgument,
        "properties and bodies must be of one length, not 2 and 1",
    ),
    (
        's.append_many("t",[b"a"],properties="abc")',
        WrongType,
        "properties must be a mapping or a list of mappings, not str",
    ),
    ('s.append_many("t",[b"a"],queue=[0,0])', InvalidArgument, "queue and bodies must be of one length, not 2 and 1"),
    ('s.append_many("t",[b"a"],queue=5)', InvalidArgument, "the queue 5 is outside 0 to 0"),
    ('s.append_many("t",[b"a"],queue="0")', WrongType, "queue must be an int or a list of ints, not str ('0')"),
    ('s.append_many("t",[b"a"],queue=["0"])', WrongType, "queue[0] must be an int, not str"),
    ('s.append_many("t",[b"a"],queue=1.5)', WrongType, "queue must be an int or a list of ints, not float (1.5)"),
    ('s.append_many("t",[b"a"],flag="a")', WrongType, "flag must be an int, not str ('a')"),
    (
        's.append_many("t",[b"a"],born_timestamps_ms="a")',
        WrongType,
        "born_timestamps_ms must be an int or a list of ints, not str ('a')",
    ),
    (
        's.append_many("t",[b"a"],born_timestamps_ms=[1,2])',
        InvalidArgument,
        "born_timestamps_ms and bodies must be of one length, not 2 and 1",
    ),
    (
        's.append_many("t",[b"a"],born_timestamps_ms=[None])',
        WrongType,
        "born_timestamps_ms[0] must be an int, not NoneType",
    ),
    ('s.append_many(None,[b"a"])', WrongType, "topic must be a str, not NoneType (None)"),
    ('s.hand_off("t",[b"a"])', InvalidArgument, "this store is the writer: append directly"),
    ('s.wait_durable("x")', WrongType, "end must be an int, not str ('x')"),
    ("s.wait_durable(-1)", InvalidArgument, "end is -1; it must be 0 to 9223372036854775807"),
    ("s.wait_durable(10**9)", OffsetOutOfRange, "nothing was appended up to 1000000000; the log ends at 500"),
    ('s.read("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ("s.read(5)", WrongType, "topic must be a list of topics, not int: topic=[5]"),
    ("s.read([5])", WrongType, "topic must be a str, not int"),
    ("s.read([])", InvalidArgument, "no topic was given; None stands for all of them"),
    ('s.read(b"t")', WrongType, "topic must be a list of topics, not bytes: topic=[b't']"),
    ('s.read("t",tags=5)', WrongType, 'tags must be text ("a || b") or a list of tags, not int'),
    (
        's.read("t",tags="a && b")',
        InvalidArgument,
        "tags is 'a && b': '&&' has no meaning there, only || divides tags (tags=\"a || b\");",
    ),
    (
        's.read("t",tags="a,b")',
        InvalidArgument,
        "tags is 'a,b': ',' has no meaning there, only || divides tags (tags=\"a || b\"); for",
    ),
    (
        's.read("t",tags="a = 5")',
        InvalidArgument,
        "tags is 'a = 5': '=' has no meaning there, only || divides tags (tags=\"a || b\");",
    ),
    ('s.read("t",tags="||")', InvalidArgument, "tags is '||': it names no tag; write tags=\"a || b\""),
    (
        's.read("t",tags="a | b")',
        InvalidArgument,
        "tags is 'a | b': '|' has no meaning there, only || divides tags (tags=\"a || b\");",
    ),
    (
        's.read("t",tags="a or b")',
        InvalidArgument,
        "tags is 'a or b': 'or' has no meaning there, only || divides tags (tags=\"a || b\");",
    ),
    (
        's.read("t",tags="TAGS in (\'a\')")',
        InvalidArgument,
        "tags is \"TAGS in ('a')\": 'in' has no meaning there, only || divides tags (tags=\"a",
    ),
    ('s.read("t",queues=0)', WrongType, "queues must be a list of queue numbers, not int: queues=[0]"),
    ('s.read("t",queues=[5])', TopicNotFound, "the topic t has no queue 5"),
    ('s.read("t",queues=["0"])', WrongType, "an element of queues must be an int, not str ('0')"),
    (
        's.read("t",queues=[])',
        InvalidArgument,
        "queues are the numbers of a topic's queues: give a topic, and at least one of them",
    ),
    ('s.read("t",queues="0")', WrongType, "queues must be a list of queue numbers, not str: queues=['0']"),
    ('s.read("t",start="0")', WrongType, "start must be an int, not str ('0')"),
    ('s.read("t",start=-1)', InvalidArgument, "start is -1; it must be 0 to 9223372036854775807"),
    ('s.read("t",start=1.5)', WrongType, "start must be an int, not float (1.5)"),
    ('s.read("t",start=4,end=2)', InvalidArgument, "start 4 lies behind end 2"),
    ('s.read("t",end=-1)', InvalidArgument, "end is -1; it must be 0 to 9223372036854775807"),
    ('s.read("t",end="x")', WrongType, "end must be an int, not str ('x')"),
    (
        "s.read(start=1)",
        InvalidArgument,
        "start and end are queue offsets: give one topic, or use start_time and end_time",
    ),
    (
        's.read("t",start_time="2024")',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not str ('2024'); for",
    ),
    (
        's.read("t",start_time=1.5)',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not float (1.5); for",
    ),
    (
        's.read("t",start_time=datetime.date.today())',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not date",
    ),
    (
        's.read("t",end_time="x")',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not str ('x'); for",
    ),
    ('s.read("t",start=datetime.datetime.now())', WrongType, "start must be an int, not datetime ("),
    (
        's.read("t",backwards=True,follow=True)',
        InvalidArgument,
        "follow waits for new messages: it cannot go backwards",
    ),
    ('s.read("t",follow=True,timeout_s="1")', WrongType, "timeout_s must be a number of seconds or None, not str"),
    (
        's.read("t",follow=True,timeout_s=-1)',
        InvalidArgument,
        "timeout_s is -1; it must be 0 or more, or None for no limit",
    ),
    (
        's.read("t",timeout_s=float("nan"))',
        InvalidArgument,
        "timeout_s is nan; it must be 0 or more, or None for no limit",
    ),
    ('s.follow("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('s.follow("t",tags=5)', WrongType, 'tags must be text ("a || b") or a list of tags, not int'),
    ('s.follow("t",queues=3)', WrongType, "queues must be a list of queue numbers, not int: queues=[3]"),
    ('s.follow("t",timeout_s="x")', WrongType, "timeout_s must be a number of seconds or None, not str"),
    ('s.get("nope",0,0)', TopicNotFound, "the store has no queue 0 of topic nope"),
    ('s.get("t",9,0)', TopicNotFound, "the store has no queue 9 of topic t"),
    ('s.get("t","0",0)', WrongType, "queue must be an int, not str ('0')"),
    ('s.get("t",0,"0")', WrongType, "offset must be an int, not str ('0')"),
    ('s.get("t",0,99)', OffsetOutOfRange, "queue offset 99 is outside the queue, which holds [0, 5)"),
    ('s.get("t",0,-1)', OffsetOutOfRange, "queue offset -1 is outside the queue, which holds [0, 5)"),
    ("s.get(None,0,0)", WrongType, "topic must be a str, not NoneType (None)"),
    ('s.get_by_id("abc")', InvalidArgument, "an offset message id has 32 or 56 hexadecimal digits, not 3"),
    ("s.get_by_id(5)", WrongType, "message_id must be a str, not int"),
    ("s.get_by_id(None)", WrongType, "message_id must be a str, not NoneType (None)"),
    (
        's.get_by_id("7F00000100002A9F0000000000009999")',
        OffsetOutOfRange,
        "physical offset 39321 lies at or behind the end of the log, 500",
    ),
    (
        's.get_by_id("AC11000100002A9F0000000000000000AC11")',
        InvalidArgument,
        "an offset message id has 32 or 56 hexadecimal digits, not 36",
    ),
    ('s.get_physical("x")', WrongType, "physical_offset must be an int, not str ('x')"),
    ("s.get_physical(-1)", InvalidArgument, "physical_offset is -1; it must be 0 to 9223372036854775807"),
    ("s.get_physical(7)", CorruptRecord, "no record: unknown magic"),
    (
        "s.get_physical(10**12)",
        OffsetOutOfRange,
        "physical offset 1000000000000 lies at or behind the end of the log, 500",
    ),
    ('s.find("nope","k")', TopicNotFound, "there is no topic 'nope' in"),
    ('s.find("t","")', InvalidArgument, "key is empty; read() returns all messages"),
    ('s.find("t",5)', WrongType, "key must be a str, not int"),
    ('s.find("t",None)', WrongType, "key must be a str, not NoneType (None)"),
    ('s.find("t","k",tag="a")', InvalidArgument, "give a key or a tag, not both; read() has further filters"),
    ('s.find("t",tag="")', InvalidArgument, "tag is empty; read() returns all messages"),
    ('s.find("t",tag=5)', WrongType, "tag must be a str, not int"),
    ('s.find("nope",tag="a")', TopicNotFound, "there is no topic 'nope' in"),
    ('s.find("t",["k"])', WrongType, "key must be a str, not list (['k'])"),
    ('s.find("t","k",limit=0)', InvalidArgument, "limit is 0; it must be 1 to 9223372036854775807"),
    ('s.find("t","k",limit="x")', WrongType, "limit must be an int, not str ('x')"),
    (
        's.find("t","k",start_time="x")',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not str ('x'); for",
    ),
    ('s.find_unique("t",5)', WrongType, "key must be a str, not int"),
    ('s.find_unique("nope","x")', TopicNotFound, "there is no topic 'nope' in"),
    (
        's.offset_at("t",0,"x")',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not str ('x'); for",
    ),
    ('s.offset_at("nope",0,5)', TopicNotFound, "the store has no queue 0 of topic nope"),
    ('s.offset_at("t",7,5)', TopicNotFound, "the store has no queue 7 of topic t"),
    ('s.offset_at("t","0",5)', WrongType, "queue must be an int, not str ('0')"),
    ("s.offset_at(None,0,5)", WrongType, "topic must be a str, not NoneType (None)"),
    ('s.min_offset("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('s.min_offset("t",9)', TopicNotFound, "the topic 't' has no queue 9"),
    ("s.max_offset(5)", WrongType, "topic must be a str, not int"),
    ('s.max_offset("t","x")', WrongType, "queue must be an int, not str ('x')"),
    ('s.queue("t",-1)', InvalidArgument, "queue is -1; it must be 0 to 2147483647"),
    ('s.queue("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ("s.queue(None)", WrongType, "topic must be a str, not NoneType (None)"),
    ('s.wait("x")', WrongType, "seen_end must be an int, not str ('x')"),
    ('s.wait(0,timeout_s="x")', WrongType, "timeout_s must be a number of seconds or None, not str"),
    ("s.topic(None)", WrongType, "name must be a str, not NoneType (None)"),
    ('s.topic("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ("s.topic(5)", WrongType, "name must be a str, not int"),
    ("s.queues(5)", WrongType, "topic must be a str, not int"),
    (
        's.create_topic("x1",perm="rw")',
        WrongType,
        "perm must be an int, not str ('rw'): give 6 for read and write, 4 for read, 2 for",
    ),
    (
        's.create_topic("x2",perm=9)',
        InvalidArgument,
        "perm is 9: give 6 for read and write, 4 for read, 2 for write, 0 for neither (1",
    ),
    ('s.create_topic("x4",queues=0)', InvalidArgument, "queues is 0; it must be 1 to 65536"),
    ('s.create_topic("x4",queues="1")', WrongType, "queues must be an int, not str ('1')"),
    ('s.create_topic("x4",queues=None)', WrongType, "queues must be an int, not NoneType (None)"),
    ('s.create_topic("x4",queues=10**6)', InvalidArgument, "queues is 1000000; it must be 1 to 65536"),
    ("s.create_topic(None)", InvalidTopic, "the topic is None: a topic is text"),
    ('s.create_topic("")', InvalidTopic, "the topic name '' is empty"),
    (
        's.create_topic("a b")',
        InvalidTopic,
        "the topic name 'a b' has characters other than letters, digits, %, |, - and _",
    ),
    ('s.create_topic("t")', InvalidArgument, "the topic t exists already; give exist_ok=True if that is fine"),
    (
        's.create_topic("x5",attributes={"a":"b"})',
        InvalidArgument,
        "there is no topic attribute 'a'; known are queue.type, cleanup.policy,",
    ),
    ('s.create_topic("x5",attributes=5)', WrongType, "attributes must be a dict of texts, not int"),
    ('s.create_topic("x5",attributes=["a"])', WrongType, "attributes must be a dict of texts, not list"),
    (
        's.create_topic("x6",attributes={"message.type":"FIFOO"})',
        InvalidArgument,
        "the attribute message.type is one of UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION,",
    ),
    ('s.create_topic("TBW102")', InvalidTopic, "TBW102 is RocketMQ's own name"),
    ('s.set_topic_queues("t",0)', InvalidArgument, "queues is 0; it must be 1 to 65536"),
    ('s.set_topic_queues("t","x")', WrongType, "queues must be an int, not str ('x')"),
    ('s.set_topic_queues("nope",1)', TopicNotFound, "there is no topic 'nope'"),
    ("s.set_topic_queues(None,1)", WrongType, "name must be a str, not NoneType (None)"),
    ('s.delete_topic("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ("s.delete_topic(None)", WrongType, "topic must be a str, not NoneType (None)"),
    ('s.delete_topic("TBW102")', TopicNotFound, "there is no topic 'TBW102' in"),
    ('s.consumer(None,"t")', WrongType, "group must be a str, not NoneType (None)"),
    ('s.consumer("","t")', InvalidArgument, "the group name '' is empty"),
    (
        's.consumer("a b","t")',
        InvalidArgument,
        "the group name 'a b' has characters other than letters, digits, %, |, - and _",
    ),
    ('s.consumer(5,"t")', WrongType, "group must be a str, not int"),
    ('s.consumer("g2",None)', WrongType, "topic must be a topic or a list of topics, not None"),
    ('s.consumer("g2","nope")', TopicNotFound, "there is no topic 'nope' in"),
    ('s.consumer("g2",[])', InvalidArgument, "no topic was given; None stands for all of them"),
    ('s.consumer("g2",5)', WrongType, "topic must be a list of topics, not int: topic=[5]"),
    ('s.consumer("g2","t",tags=5)', WrongType, 'tags must be text ("a || b") or a list of tags, not int'),
    (
        's.consumer("g2","t",tags="a && b")',
        InvalidArgument,
        "tags is 'a && b': '&&' has no meaning there, only || divides tags (tags=\"a || b\");",
    ),
    ('s.consumer("g2","t",queues=0)', WrongType, "queues must be a list of queue numbers, not int: queues=[0]"),
    ('s.consumer("g2","t",queues=[9])', TopicNotFound, "the topic t has no queue 9"),
    ('s.consumer("g2","t",start="begin")', InvalidArgument, 'start is "earliest", "latest" or a time, not \'begin\''),
    (
        's.consumer("g2","t",start=None)',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not NoneType (None);",
    ),
    (
        's.consumer("g2","t",start=1.5)',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not float (1.5); for",
    ),
    ('s.consumer("g2","t",timeout_s="x")', WrongType, "timeout_s must be a number of seconds or None, not str"),
    (
        's.consumer("g","t")',
        GroupBusy,
        "another consumer of the group 'g' is open on the topic 't'. Close it, or give each",
    ),
    ('c.seek("t",0,99)', OffsetOutOfRange, "offset 99 is behind the end of t/0: the next message gets offset 5"),
    ('c.seek("t",5,0)', TopicNotFound, "the topic 't' has no queue 5"),
    ('c.seek("nope",0,0)', InvalidArgument, "this consumer does not read queue 0 of 'nope'"),
    ('c.seek("t",0,-1)', InvalidArgument, "offset is -1; it must be 0 to 9223372036854775807"),
    ('c.seek("t",0,"0")', WrongType, "offset must be an int, not str ('0')"),
    ('c.seek("t",0,None)', WrongType, "offset must be an int, not NoneType (None)"),
    ('c.seek("t","0",0)', WrongType, "queue must be an int, not str ('0')"),
    ('c.seek_time("x")', WrongType, "a time must be a datetime or milliseconds since 1970 as int, not str ('x'); for"),
    (
        "c.seek_time(None)",
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not NoneType (None);",
    ),
    ('c.fetch("x")', WrongType, "max_messages must be an int, not str ('x')"),
    ("c.fetch(0)", InvalidArgument, "max_messages is 0; it must be 1 to 2147483647"),
    ("c.fetch(-1)", InvalidArgument, "max_messages is -1; it must be 1 to 2147483647"),
    ('c.fetch(5,timeout_s="x")', WrongType, "timeout_s must be a number of seconds or None, not str"),
    ("c.commit(5)", WrongType, "message must be a message of this consumer or None, not int"),
    ("c.commit([m])", WrongType, "message must be a message of this consumer or None, not list"),
    ('c.commit("x")', WrongType, "message must be a message of this consumer or None, not str"),
    (
        's.set_progress("g","t",0,99)',
        OffsetOutOfRange,
        "offset 99 is behind the end of t/0: the next message gets offset 5",
    ),
    ('s.set_progress("g","t",9,0)', TopicNotFound, "the topic 't' has no queue 9"),
    ('s.set_progress("g","nope",0,0)', TopicNotFound, "there is no topic 'nope' in"),
    ('s.set_progress("g","t",0,-1)', InvalidArgument, "offset is -1; it must be 0 to 9223372036854775807"),
    ('s.set_progress("g","t",0,"0")', WrongType, "offset must be an int, not str ('0')"),
    ('s.set_progress("g","t","0",0)', WrongType, "queue must be an int, not str ('0')"),
    ('s.set_progress(None,"t",0,0)', WrongType, "group must be a str, not NoneType (None)"),
    ('s.set_progress("","t",0,0)', InvalidArgument, "the group name '' is empty"),
    ('s.commit_progress("g",5)', WrongType, "offsets must be a dict {(topic, queue): offset}, not int"),
    (
        's.commit_progress("g",{("t",0):99})',
        OffsetOutOfRange,
        "offset 99 is behind the end of t/0: the next message gets offset 5",
    ),
    ('s.commit_progress("g",{"t":1})', WrongType, "offsets has the key 't': it must be a pair (topic, queue)"),
    ('s.commit_progress("g",{("t",0):"x"})', WrongType, "offset must be an int, not str ('x')"),
    ('s.commit_progress("g",{("t",9):1})', TopicNotFound, "the topic 't' has no queue 9"),
    ('s.commit_progress(None,{("t",0):1})', WrongType, "group must be a str, not NoneType (None)"),
    ("s.progress(5)", WrongType, "group must be a str, not int"),
    ('s.progress("g",5)', WrongType, "topic must be a str, not int"),
    ('s.delete_group("nope")', NotFound, "there is no consumer group 'nope'"),
    ("s.delete_group(None)", WrongType, "group must be a str, not NoneType (None)"),
    ('s.restore_removed("nope")', NotFound, "holds no part of a log"),
    ("s.restore_removed(None)", WrongType, "name must be a str, not NoneType (None)"),
    ('s.restore_removed("../x")', InvalidArgument, '"../x" is not the name of a folder under cometmq/removed'),
    ('s.scan("nope")', TopicNotFound, "there is no topic 'nope' in"),
    ("s.scan(5)", WrongType, "topic must be a list of topics, not int: topic=[5]"),
    ('s.scan("t",columns=5)', WrongType, "columns must be a list of column names, not int: columns=[5]"),
    ('s.scan("t",columns="nope")', InvalidArgument, "columns are several names: columns=['nope']"),
    ('s.scan("t",columns=["body","body"])', InvalidArgument, "the column 'body' was asked for twice"),
    ('s.scan("t",columns=[])', InvalidArgument, "no column was asked for; None stands for the usual ones"),
    ('s.scan("t",columns=[5])', WrongType, "a column is named by a str, not int"),
    (
        's.scan("t",tags="a,b")',
        InvalidArgument,
        "tags is 'a,b': ',' has no meaning there, only || divides tags (tags=\"a || b\"); for",
    ),
    ('s.scan("t",keys=5)', WrongType, "keys must be a list of keys, not int: keys=[5]"),
    ('s.scan("t",keys=[5])', WrongType, "an element of keys must be a str, not int"),
    (
        's.scan("t",keys="")',
        InvalidArgument,
        "keys are one key or several, none of them empty; None stands for all messages",
    ),
    ('s.scan(keys="a")', InvalidArgument, "keys are looked up in a topic: give one"),
    ('s.scan("t",keys="a",follow=True)', InvalidArgument, "follow waits for new messages: it cannot go with keys"),
    ('s.scan("t",queues=0)', WrongType, "queues must be a list of queue numbers, not int: queues=[0]"),
    ('s.scan("t",start="x")', WrongType, "start must be an offset, not str ('x'); Cursor.from_json reads"),
    ('s.scan("t",start=[1])', WrongType, "start must be an int, not list ([1])"),
    ('s.scan("t",start={0: "1"})', WrongType, "offset must be an int, not str ('1')"),
    ('s.scan("t",start={"0": 1})', WrongType, "a queue of start must be an int, not str ('0')"),
    ('s.scan("t",start={7: 1})', TopicNotFound, "the topic 't' has no queue 7"),
    ('s.scan("t",start={0: 6})', OffsetOutOfRange, "offset 6 is behind the end of t/0: the next message gets offset 5"),
    ('s.scan("t",start={0: -1})', InvalidArgument, "offset is -1; it must be 0 to"),
    ('s.scan("t",start={("u", 0): 1})', InvalidArgument, "start contains ('u', 0): give queues of the topics that are"),
    ('s.scan("t",start={("t",): 1})', InvalidArgument, "start contains ('t',): give queues of the topics that are"),
    ("s.scan(start={0: 1})", InvalidArgument, "start has offsets by queue, which is for one topic: give one, or"),
    ('s.scan("t",start=cometmq.Cursor(),follow=True)', InvalidArgument, "follow has no end, and start= a cursor reads"),
    ('s.scan("t",start=cometmq.Cursor(),keys="a")', InvalidArgument, "cannot go with start= a cursor"),
    ('s.scan("t",start=cometmq.Cursor(),compressed="raw")', InvalidArgument, "cannot go with start= a cursor"),
    (
        's.scan("t",start=cometmq.Cursor({("t", 0): 9}))',
        cometmq.StaleCursor,
        "t/0 ends at offset 5, and the cursor has",
    ),
    ('s.scan("t",start=cometmq.Cursor()).cursor', InvalidArgument, "nothing was read by this scan: iterate over its"),
    ('s.scan("t",start=cometmq.Cursor()).commit()', InvalidArgument, "this scan has no group to commit for: keep"),
    ('s.scan("t").cursor', InvalidArgument, "this scan keeps no cursor: give start=cometmq.Cursor()"),
    ('s.scan("t",start=1).commit()', InvalidArgument, "this scan keeps no cursor: give start=cometmq.Cursor()"),
    ('s.scan("t",group=5)', WrongType, "group must be a str, not int (5)"),
    ('s.scan("t",group="a b")', InvalidArgument, "'a b'"),
    (
        's.scan("t",group="e",start=1)',
        InvalidArgument,
        "group and start both say where to begin: leave one of them out",
    ),
    ('s.scan(group="e")', InvalidArgument, "a group's progress is of topics: give one, or several"),
    ('s.scan("t",group="e",follow=True)', InvalidArgument, "follow has no end, and group reads up to the end of this"),
    ('s.scan("t",group="e",keys="a")', InvalidArgument, "keys and light queues (%LMQ%…) have no order of offsets"),
    ('s.scan("t",group="e",compressed="raw")', InvalidArgument, 'compressed="raw" gives inner batches as one row each'),
    ('s.scan("t",group="e").commit()', InvalidArgument, "nothing was read by this scan: iterate over its batches"),
    ('s.scan("t",schema="infer")', InvalidArgument, "cannot infer a schema of t: none of the 5 bodies of the sample"),
    ('s.scan("t",schema="infer",body_format="csv")', InvalidArgument, 'schema="infer" is for JSON: CSV lines have no'),
    ('s.scan("t").select("body")', InvalidArgument, "names are several names: select(['body'])"),
    ('s.scan("t").select(["nope"])', InvalidArgument, "this scan has no column 'nope'; it has topic, queue_id"),
    ('s.scan("t").select([])', InvalidArgument, "no column was asked for; None stands for all of this scan's"),
    ('s.scan("t").select(5)', WrongType, "names must be a list of column names, not int: names=[5]"),
    ('s.scan("t",follow=True).to_dataset()', InvalidArgument, "with follow=True and no timeout_s the scan never ends"),
    ('s.scan("t",on_loss="x")', InvalidArgument, "on_loss is 'fail' or 'skip', not 'x'"),
    ("cometmq.Cursor(5)", WrongType, "offsets must be a dict {(topic, queue): offset}, not int"),
    ("cometmq.Cursor({0: 1})", WrongType, "offsets contains the key 0: it must be a pair (topic, queue)"),
    ('cometmq.Cursor({("t", 0): -1})', InvalidArgument, "the offset of t/0 is -1; it must be an int from 0 up"),
    ("cometmq.Cursor.from_json(5)", WrongType, "text must be a cursor's JSON (str or bytes), not int"),
    ('cometmq.Cursor.from_json("x")', InvalidArgument, "this is not a cursor's JSON: 'x' (JSONDecodeError"),
    (
        "cometmq.Cursor.from_json('{\"cometmq_cursor\":9}')",
        InvalidArgument,
        "the cursor has the version 9; this CometMQ knows 1",
    ),
    ('s.scan("t",start=1.5)', WrongType, "start must be an int, not float (1.5)"),
    ('s.scan("t",start=-1)', InvalidArgument, "start is -1; it must be 0 to 9223372036854775807"),
    ('s.scan("t",end="x")', WrongType, "end must be an int, not str ('x')"),
    (
        "s.scan(start=1)",
        InvalidArgument,
        "start and end are queue offsets: give one topic, or use start_time and end_time",
    ),
    (
        's.scan("t",start_time="x")',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not str ('x'); for",
    ),
    (
        's.scan("t",end_time=1.5)',
        WrongType,
        "a time must be a datetime or milliseconds since 1970 as int, not float (1.5); for",
    ),
    ('s.scan("t",limit=0)', InvalidArgument, "limit is 0; it must be 1 to 9223372036854775807"),
    ('s.scan("t",limit="1")', WrongType, "limit must be an int, not str ('1')"),
    ('s.scan("t",timeout_s="x")', WrongType, "timeout_s must be a number of seconds or None, not str"),
    ('s.scan("t",body="text")', InvalidArgument, "body is 'view' or 'binary', not 'text'"),
    ('s.scan("t",compressed="x")', InvalidArgument, "compressed is 'decompress' or 'raw', not 'x'"),
    (
        's.scan("t",schema=5)',
        InvalidArgument,
        'schema is a pyarrow.Schema, or names with types ({"id": "int64"}); this one cannot',
    ),
    ('s.scan("t",schema={})', InvalidArgument, "schema needs at least one field, and no name twice"),
    (
        's.scan("t",schema={"a":5})',
        InvalidArgument,
        'schema is a pyarrow.Schema, or names with types ({"id": "int64"}); this one cannot',
    ),
    (
        's.scan("t",schema={5:"int64"})',
        InvalidArgument,
        'schema is a pyarrow.Schema, or names with types ({"id": "int64"}); this one cannot',
    ),
    (
        's.scan("t",schema=["a"])',
        InvalidArgument,
        'schema is a pyarrow.Schema, or names with types ({"id": "int64"}); this one cannot',
    ),
    (
        's.scan("t",schema={"a":"int64"},body_format="xml")',
        InvalidArgument,
        'body_format is "json" or "csv", not \'xml\'',
    ),
    ('s.scan("t",schema={"a":"int64"},on_bad_body="x")', InvalidArgument, "on_bad_body is 'null' or 'fail', not 'x'"),
    (
        's.scan("t",schema={"a":"int64"},compressed="raw")',
        InvalidArgument,
        'a schema decodes bodies: compressed="raw" leaves them as they are; give one of the',
    ),
    (
        's.scan("t",schema={"a":"int64"},columns=["a"])',
        InvalidArgument,
        "schema and columns both have 'a': leave one of them out",
    ),
    ('s.scan("t",on_corrupt="x")', InvalidArgument, "on_corrupt is 'fail' or 'skip', not 'x'"),
    ('s.scan("t",batch_rows=0)', InvalidArgument, "batch_rows is 0; it must be 1 to 16777216"),
    ('s.scan("t",batch_rows="x")', WrongType, "batch_rows must be an int, not str ('x')"),
    ('s.scan("t",batch_bytes=0)', InvalidArgument, "batch_bytes is 0; it must be 1 to 1073741824"),
    (
        's.scan("t",follow=True).to_table()',
        InvalidArgument,
        "with follow=True and no timeout_s the scan never ends: iterate over its batches, or",
    ),
    (
        's.scan("t",follow=True).count()',
        InvalidArgument,
        "with follow=True and no timeout_s the scan never ends: iterate over its batches, or",
    ),
    ("closed.fetch()", StoreClosed, "the consumer of the group 'closed' is closed"),
    ("next(closed)", StoreClosed, "the consumer of the group 'closed' is closed"),
    ("closed.commit()", StoreClosed, "the consumer of the group 'closed' is closed"),
    ("closed.positions()", StoreClosed, "the consumer of the group 'closed' is closed"),
    ('closed.seek("t",0,0)', StoreClosed, "the consumer of the group 'closed' is closed"),
    ("closed.seek_time(5)", StoreClosed, "the consumer of the group 'closed' is closed"),
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
        "send_msg_timeout_ms is 'x': it is a whole number",
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
        "vip_channel_enabled is 'x': it is True or False",
    ),
    (
        'Producer("g", interceptors=5, **network).start()',
        InvalidArgument,
        "Producer() was given 5: it takes interceptors=[...]",
    ),
    (
        'Producer("g", rpc_hooks=5, **network).start()',
        InvalidArgument,
        "rpc_hooks is 5: give a list of hooks, each with the methods before_request and",
    ),
    (
        'Producer("g", instance_name="", **network).start()',
        InvalidArgument,
        "instance_name is '': it is a text that is not empty",
    ),
    ('producer.send("t", b"x")', ClientStateError, "producer group g is not started: call start() first"),
    (
        'PushConsumer("g", consume_from="x")',
        InvalidArgument,
        "there is no option 'consume_from'; did you mean consume_from_where?",
    ),
    ('PushConsumer("g", threads=5)', InvalidArgument, "there is no option 'threads'; did you mean consume_thread_max?"),
    ('PushConsumer("g", listener=5, **network).start()', InvalidArgument, "the listener is 5, which cannot be called"),
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
        "auto_commit is 'x': it is True or False",
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
    ('r.create_topic("u")', ReadOnlyStore, 'was opened to read; open it with mode="a" for this'),
    ('r.set_topic_queues("t", 1)', ReadOnlyStore, 'was opened to read; open it with mode="a" for this'),
    ('r.delete_topic("t")', ReadOnlyStore, 'was opened to read; open it with mode="a" for this'),
    ('r.delete_group("g")', ReadOnlyStore, 'was opened to read; open it with mode="a" for this'),
    ("r.expire()", ReadOnlyStore, 'was opened to read; open it with mode="a" for this'),
    ("r.maintain()", ReadOnlyStore, 'was opened to read; open it with mode="a" for this'),
    ('r.append("t", "x")', WrongType, "bodies[0] must be bytes-like, not str: encode it"),
    ('r.append("t", b"x", keys=17)', WrongType, "keys must be a str, bytes or a list of keys, not int"),
    ('r.append("t", b"x", queue="0")', WrongType, "queue must be an int or a list of ints, not str ('0')"),
    (
        'r.append_many("t", pa.array(["a"]))',
        WrongType,
        "bodies is an Arrow array of text; a body must be bytes: encode it",
    ),
    ('r.hand_off("t", ["a"])', WrongType, "bodies[0] must be bytes-like, not str: encode it"),
    ('r.hand_off("t", [b"a"], flag="x")', WrongType, "flag must be an int, not str ('x')"),
    (
        'r.hand_off("TBW 102", [b"a"])',
        InvalidTopic,
        "the topic name 'TBW 102' has characters other than letters, digits, %, |, - and _",
    ),
    ('r.commit_progress("g", 5)', WrongType, "offsets must be a dict {(topic, queue): offset}, not int"),
    (
        'r.set_progress("g", "t", 0, 99)',
        OffsetOutOfRange,
        "offset 99 is behind the end of t/0: the next message gets offset 5",
    ),
    ('r.restore_removed("x")', ReadOnlyStore, 'was opened to read; open it with mode="a" for this'),
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
    (
        'cometmq.open(Path("redis://x"))',
        InvalidArgument,
        "path is 'redis:/x', a URL: a store is a directory; brokers are reached by",
    ),
    ('cometmq.open("file:///x")', InvalidArgument, "path is 'file:///x', a URL: pass '/x'"),
    ('cometmq.open("~")', InvalidArgument, "path is '~': ~ is not expanded; pass os.path.expanduser('~')"),
    ('s.scan("t", schema={"a": 5})', InvalidArgument, "field 'a': 5 is not a type: write int64"),
    ('s.scan("t", schema={5: "int64"})', InvalidArgument, "a field's name must be a str, not int (5)"),
    ('s.scan("t", schema={"a": "nope"})', InvalidArgument, "field 'a': there is no type 'nope': write int64"),
    ('s.scan("t", schema="a")', InvalidArgument, "'a' is not a name with a type: write id int64"),
    ('s.scan("t", schema="a int", error_column="a")', InvalidArgument, "error_column is 'a': give a name that is not"),
    ('s.scan("t", schema="a int", strict="yes")', WrongType, "strict must be True or False, not str ('yes')"),
    ('s.scan("t", schema="a int", strict=True, on_bad_body="null")', InvalidArgument, "strict=True fails the scan"),
    ('s.scan("t", error_column="e")', InvalidArgument, "are about bodies that a schema decodes: give schema"),
]


@pytest.mark.parametrize(("text", "kind", "part"), ROWS, ids=[row[0] for row in ROWS])
def test_a_wrong_use_is_refused(names: dict[str, Any], text: str, kind: type[cometmq.Error], part: str) -> None:
    before = sorted(Path(names["d"]).iterdir())
    with pytest.raises(cometmq.Error) as caught:
        call(text, names)
    assert type(caught.value) is kind
    assert part in str(caught.value)
    assert sorted(Path(names["d"]).iterdir()) == before, "a directory was made"
    assert names["s"].topics() == ["t"]


def test_right_uses_beside_them(names: dict[str, Any]) -> None:
    assert call('len(list(s.read("t", tags="a || b")))', names) == 5
    assert call('len(list(s.read("t", tags=["a", "b,c"])))', names) == 5
    for every in ('"*"', '""', "None", '["*"]', '["b", "*"]', '"a||"', '"|| a"', '"b || || a"'):
        assert call(f'len(list(s.read("t", tags={every})))', names) == 5
    assert call('c.seek("t", 0, 5)', names) is None
    for store in "sa":
        assert call(f"{store}.wait(-1)", names), "anything at all"
        for number in ("np.float32(0)", "np.int64(0)", "Fraction(0)", "np.float64('inf')", "10**400"):
            assert call(f"{store}.wait(-1, timeout_s={number})", names)
    for time in ("np.int64(0)", "np.uint8(0)"):
        assert call(f"c.seek_time({time})", names) is None
    assert call("cometmq.Retention(reserved_hours=np.float32(1.5), max_used_ratio=np.float64(0.5)).reserved_ms", names)


COMMANDS: list[tuple[str, int, str]] = [
    ("inspect redis://x", 3, "a URL: a store is a directory"),
    ("inspect nowhere", 3, "nowhere: check the path"),
    ("put redis://x t", 3, "a URL: a store is a directory"),
    ("put ~/x t", 3, "~ is not expanded"),
    ("export s t -o o.xlsx", 2, "unsupported suffix of o.xlsx: use .parquet, .arrow, .csv or .jsonl"),
    ("export s t -o o.xlsx --limit 0", 2, "--limit"),
    ("export s nope -o o.csv", 3, "there is no topic 'nope'"),
    ("export s t -o o.csv --tags a,b", 3, "only || divides tags"),
    ("export s t -o o.csv --columns nope", 3, "there is no column 'nope'"),
    ("export s t -o o.csv --compression brotli", 3, "csv is compressed by none, gzip, zstd, not 'brotli'"),
    ("export s t -o o.csv --from-time soon", 2, "'soon' is not a time"),
    ("export s t -o out --part-size 0", 2, "'0' is not a size"),
    ("export s t -o out --resume", 3, "no export was begun in out"),
    ("export s t", 2, "--output"),
    ("export s t -o o.csv --since-last", 2, "o.csv is a file: --since-last needs a folder"),
    ("export s t -o out --since-last --resume", 2, "--since-last excludes --resume and --overwrite"),
    ("export s t -o out --partition-by hour", 2, "'hour' is not day, topic or queue_id"),
    ("export s t -o out --schema x", 3, "'x' is not a name with a type"),
    ("export s t -o out --infer", 3, "cannot infer a schema of t: none of the 5 bodies of the sample"),
    ("sql s x --infer --body-format csv", 2, "CSV lines have no names; give --schema"),
    ("cat s t --tags a='5'", 3, "only || divides tags"),
    ("cat s nope", 3, "there is no topic 'nope'"),
    ("sql s", 2, "Missing argument 'query'"),
    ("sql s x -o o.xlsx", 2, "unsupported suffix of o.xlsx"),
    ("sql s x --from-time soon", 2, "'soon' is not a time"),
    ("sql s x --csv --json", 2, "exclude each other"),
    ("verify nowhere", 3, "nowhere"),
    ("topic create t --queues 0", 2, "--queues"),
    ("topic create t --perm 9", 2, "'9' is not a permission: use r, w, rw or none"),
    ("topic create t --perm x", 2, "'x' is not a permission"),
    ("message get nonsense -n 127.0.0.1:1", 3, "for a unique id pass --topic: get nonsense --topic T"),
    ("message get", 2, "give an id, or --topic, --queue and --offset"),
    ("message get x --queue 1", 2, "give an id, or --topic, --queue and --offset"),
    ("consume t --tags a='b' -n 127.0.0.1:1", 2, "has '=', which has no meaning there"),
    ("nonsense", 2, "No such command 'nonsense'"),
    ("bench --nonsense", 2, "No such option"),
]


@pytest.mark.parametrize(("line", "code", "part"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_wrong_command_line_is_refused(names: dict[str, Any], line: str, code: int, part: str) -> None:
    before = sorted(Path(names["d"]).iterdir())
    outcome = run(*line.split())
    assert part in " ".join(outcome.err.replace("│", " ").split())
    assert outcome.code == code
    assert sorted(Path(names["d"]).iterdir()) == before, "a file was made"
