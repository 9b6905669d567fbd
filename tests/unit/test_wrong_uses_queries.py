"""Checks: wrong scans and cursors are refused by an error of our family, whose text names the argument, its value and
the remedy. A row is a call, its error and a part of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cometmq
from cometmq import InvalidArgument, OffsetOutOfRange, TopicNotFound, WrongType
from support.wrong_uses import check_refused, world


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with world(tmp_path_factory.mktemp("wrong")) as found:
        yield found


ROWS: list[tuple[str, type[cometmq.Error], str]] = [
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
    (
        's.scan(group="e")',
        InvalidArgument,
        "scan(group=) needs a topic, or several: a group's progress is kept by topic",
    ),
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
    (
        'cometmq.Cursor({("t", 0): -1})',
        InvalidArgument,
        "the offset of t/0 is -1; it must be an int from 0 to 2^63 - 1",
    ),
    ("cometmq.Cursor.from_json(5)", WrongType, "text must be a cursor's JSON (str or bytes), not int"),
    ('cometmq.Cursor.from_json("x")', InvalidArgument, "this is not a cursor's JSON: 'x' (it is not JSON"),
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
    check_refused(names, text, kind, part)
