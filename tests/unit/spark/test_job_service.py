"""Checks: the process that begins and commits writes for Spark's JVM answers each request, failures included."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cometmq
from cometmq.spark import journal
from cometmq.spark.job_service import answer, serve
from cometmq.spark.staging import RowEncoder, WriteSchema, stage
from cometmq.store.staged_files import StagedFolder
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"first")
    return tmp_path / "store"


def request(path: Path, call: str, *, streaming: bool = False, **further: Any) -> dict[str, Any]:
    options = {"path": str(path), "topic": "t", **further.pop("options", {})}
    return {"call": call, "options": options, "streaming": streaming, "query": "3f2c", **further}


def staged(path: Path, job: str, *bodies: bytes) -> list[list[Any]]:
    rows = iter([pa.record_batch({"body": pa.array(bodies, pa.binary())})])
    encoder = RowEncoder(WriteSchema({"body": "body"}), topic="t", body_bytes_max=100)
    return [
        [one.name, one.rows, one.size_bytes, one.crc32] for one in stage(rows, encoder, StagedFolder(path), job, "0")
    ]


def bodies(path: Path) -> list[bytes]:
    with cometmq.open(path, mode="r") as store:
        return [bytes(message) for message in store.read("t")]


def jobs(path: Path) -> Iterator[str]:
    return (entry.name for entry in (path / "cometmq" / "staged").iterdir() if entry.name != "done")


COLUMNS = [["Body", "string"], ["keys", "array<string>"], ["queue", "smallint"], ["shardKey", "string"]]


def test_columns_get_the_numbers_of_their_kinds(path: Path) -> None:
    found = answer(request(path, "check", truncates=False, columns=COLUMNS))
    assert found == {"path": str(path), "kinds": [0, 4, 7, 10], "hasTopic": True}


@pytest.mark.parametrize(
    ("further", "text"),
    [
        ({"truncates": True}, "option mode: a log is only ever appended to"),
        ({"truncates": True, "streaming": True}, "option outputMode: "),
        ({"columns": [["body", "bigint"]]}, "the column body must be string or binary, not bigint"),
        ({"options": {"tag": "x"}}, "option tag: there is no such option"),
        ({"options": {"jobId": "x"}, "streaming": True}, "option jobId: is an option of a batch write"),
    ],
)
def test_a_refusal_is_an_answer(path: Path, further: dict[str, Any], text: str) -> None:
    asked = {"truncates": False, "columns": COLUMNS, **further}
    assert answer(request(path, "check", **asked))["error"].startswith(text)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_job_is_committed_once(path: Path, streaming: bool) -> None:
    options = {"checkpointLocation": "/c"} if streaming else {"jobId": "daily"}
    for _ in range(2):
        begun = answer(request(path, "begin", streaming=streaming, options=options))
        assert begun["bodyBytesMax"] == 4 << 20
        files = staged(path, begun["job"], b"a", b"b")
        further = {"streaming": streaming, "options": options, "job": begun["job"], "files": files, "number": 7}
        assert answer(request(path, "commit", **further)) == {}
    assert bodies(path) == [b"first", b"a", b"b"]
    assert list(jobs(path)) == []


@pytest.mark.parametrize("streaming", [False, True])
def test_an_abandoned_job_leaves_nothing(path: Path, streaming: bool) -> None:
    options = {"CheckpointLocation": "/c"} if streaming else {}
    begun = answer(request(path, "begin", streaming=streaming, options=options))
    staged(path, begun["job"], b"a")
    assert list(jobs(path)) == [begun["job"]]
    assert answer(request(path, "abandon", streaming=streaming, options=options, job=begun["job"])) == {}
    assert (bodies(path), list(jobs(path))) == ([b"first"], [])


def test_each_line_has_an_answer(path: Path) -> None:
    asked = [{"call": "ping"}, request(path / "commitlog", "begin"), {"call": "ping"}]
    answers = io.StringIO()
    serve(io.StringIO("".join(json.dumps(one) + "\n" for one in asked)), answers)
    first, refused, last = (json.loads(line) for line in answers.getvalue().splitlines())
    assert (first, last) == ({}, {})
    assert "error" in refused


def test_an_unexpected_failure_is_an_answer(path: Path) -> None:
    assert answer(request(path, "commit")) == {"error": "KeyError: 'files'"}


def test_requests_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    asked = request(tmp_path / "\u00fc", "check", truncates=False, columns=COLUMNS)
    done = subprocess.run(
        [sys.executable, "-m", "cometmq.spark.job_service"],
        input=json.dumps(asked, ensure_ascii=False).encode() + b"\n",
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["path"] == str(tmp_path / "\u00fc")


def test_a_job_ends_with_the_jvm_also_where_that_is_process_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 42)
    for pid, name, parent in ((42, "python3", 7), (7, "sh", 1), (1, "java", 0)):
        process = tmp_path / str(pid)
        process.mkdir()
        (process / "comm").write_text(f"{name}\n")
        (process / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 0")
    assert journal._driver_pid(tmp_path) == 1
    (tmp_path / "1" / "comm").write_text("tini\n")
    assert journal._driver_pid(tmp_path) == 42
