"""``cometmq export`` to a folder: parts, continuing after whatever ended a run, runs since the last one, partitions."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import cometmq
from cometmq.arrow.columns import DEFAULT_COLUMNS
from cometmq.arrow.exporting import STATE_NAME, Exporter, PartitionBy
from cometmq.arrow.writing import BytesAs, FileFormat, FileKind
from support.any_disk import retention_on_request
from support.command_line import run, run_json
from support.exports import (
    COUNT,
    Export,
    all_rows,
    append_orders_and_others,
    check_refused,
    expected,
    export_orders,
    names,
    stop_after,
)
from support.small_store import open_small

LOCK_NAME = "_cometmq_export.lock"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return append_orders_and_others(tmp_path / "store")


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Export:
    """An export in batches of 17 rows, of which two or three fill a part; begun, or continued."""
    monkeypatch.setattr("cometmq.arrow.exporting._BATCH_ROWS", 17)
    return export_orders


# --- Parts


def test_a_folder_of_parts(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = run_json("export", path, "orders", "-o", out, "--json")
    assert [part["name"] for part in report["parts"]] == ["part-00000.parquet"]
    assert all_rows(out) == expected(path)
    outcome = run("export", path, "orders", "-o", out)
    assert outcome.code == 3
    assert "already holds a complete export; use --since-last to add newer messages, or --overwrite" in outcome.err
    again = run_json("export", path, "orders", "-o", out, "--resume", "--json")
    assert again["complete"]
    assert again["resumed"]
    assert again["messages"] == COUNT
    assert all_rows(out) == expected(path)
    assert run("export", path, "others", "-o", out, "--overwrite", "--format", "jsonl").code == 0
    assert names(out) == {STATE_NAME, LOCK_NAME, "part-00000.jsonl"}


def test_a_folder_with_something_else_in_it(path: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x", encoding="utf-8")
    for more in ([], ["--overwrite"]):
        outcome = run("export", path, "-o", tmp_path / "out", *more)
        assert outcome.code == 3
        assert "something else in it" in outcome.err
    assert names(tmp_path / "out") == {"mine.txt"}


@pytest.mark.parametrize("more", [{}, {"tags": "paid"}, {"limit": 123}, {"start": 7, "end": 150}, {"queues": [0, 2]}])
def test_stopped_anywhere_it_goes_on_and_has_each_row_once(
    path: Path, tmp_path: Path, export: Export, more: dict[str, Any]
) -> None:
    wanted = expected(path, **more)
    for calls in (0, 1, 2, 3, 5, 8, 13):
        out = tmp_path / f"out-{calls}"
        runs = 0
        while not export(path, out, stop_after(calls if runs < 6 else 1_000), **more).complete:
            runs += 1
            assert json.loads((out / STATE_NAME).read_text(encoding="utf-8"))["complete"] is False
        assert all_rows(out) == wanted


@pytest.mark.parametrize("compressed", ["decompress", "raw"])
def test_inner_batches_are_gone_on_with(tmp_path: Path, export: Export, compressed: str) -> None:
    """Parts end within a record that holds several messages."""
    path = tmp_path / "store"
    with open_small(path) as store:
        store.create_topic("orders", batch=True, queues=2)
        for number in range(40):
            store.append_many("orders", [b"%d.%d" % (number, part) * 20 for part in range(number % 7 + 1)])
    wanted = expected(path, compressed=compressed)
    assert len(wanted) > 100 or compressed == "raw"
    for calls in (2, 3, 5):
        out = tmp_path / f"out-{calls}"
        for _ in range(40):
            if export(path, out, stop_after(calls), compressed=compressed).complete:
                break
        assert all_rows(out) == wanted


def test_a_part_that_the_state_does_not_know_is_written_again(path: Path, tmp_path: Path, export: Export) -> None:
    """As after a crash between the two."""
    out = tmp_path / "out"
    export(path, out, stop_after(4))
    before = (out / STATE_NAME).read_bytes()
    parts = names(out)
    export(path, out, stop_after(4))
    assert names(out) > parts
    (out / STATE_NAME).write_bytes(before)
    (out / "part-00007.parquet.partial").write_bytes(b"torn")
    assert export(path, out, lambda: False).complete
    assert all_rows(out) == expected(path)
    assert not list(out.glob("*.partial"))


def test_messages_that_came_later_are_not_in_it(path: Path, tmp_path: Path, export: Export) -> None:
    wanted = expected(path)
    export(path, tmp_path / "out", stop_after(4))
    with open_small(path) as store:
        store.append_many("orders", [b"later"] * 50)
    assert export(path, tmp_path / "out", lambda: False).complete
    assert all_rows(tmp_path / "out") == wanted


def test_a_topic_that_was_made_again_is_not_gone_on_with(path: Path, tmp_path: Path, export: Export) -> None:
    """It has as many messages as before: the parts that are there are of its former life."""
    out = tmp_path / "out"
    assert not export(path, out, stop_after(2)).complete
    with open_small(path) as store:
        count = store.topic("orders").messages
        store.delete_topic("orders")
        store.create_topic("orders", queues=3)
        store.append_many("orders", [b"new"] * (count + 3))
    with pytest.raises(cometmq.InvalidArgument, match="deleted and made again; export into another folder"):
        export(path, out, lambda: False)


def test_going_on_with_other_options_is_refused(path: Path, tmp_path: Path, export: Export) -> None:
    out = tmp_path / "out"
    export(path, out, stop_after(4))
    outcome = run("export", path, "orders", "-o", out, "--resume", "--tags", "paid", "--compression", "none")
    assert outcome.code == 3
    assert "was begun with no --tags; this run has --tags paid: use the same options to continue" in outcome.err
    outcome = run("export", path, "orders", "-o", out, "--resume", "--where", "TAGS = 'paid'", "--compression", "none")
    assert outcome.code == 3
    assert "was begun with no --where; this run has --where TAGS = 'paid': use" in outcome.err
    outcome = run("export", path, "orders", "-o", out)
    assert "already holds an unfinished export; use --resume to continue, or --overwrite" in outcome.err
    assert run("export", path, "orders", "-o", out, "--resume", "--compression", "none").code == 0
    assert all_rows(out) == expected(path)
    other = tmp_path / "other"
    with open_small(other) as store:
        store.append("orders", b"x")
    state = json.loads((out / STATE_NAME).read_text(encoding="utf-8"))
    (out / STATE_NAME).write_text(json.dumps({**state, "complete": False}), encoding="utf-8")
    outcome = run("export", other, "orders", "-o", out, "--resume", "--compression", "none")
    assert "not the store" in outcome.err
    (out / STATE_NAME).write_text("{", encoding="utf-8")
    assert "cannot be read" in run("export", path, "orders", "-o", out, "--resume").err


def test_by_keys_into_a_folder(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("export", path, "orders", "--key", "every", "-o", out).code == 0
    assert len(all_rows(out)) == COUNT
    assert "by keys" in run("export", path, "orders", "--key", "every", "-o", out, "--resume").err


# --- Damage, Ctrl-C


@pytest.fixture
def damaged(path: Path) -> Path:
    with cometmq.open(path, mode="r") as store:
        place = store.get("orders", 1, 100)
    log = next((path / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(place.physical_offset + 4)
        file.write(b"\xff" * 4)
    return path


def test_damage(damaged: Path, tmp_path: Path) -> None:
    out = tmp_path / "orders.parquet"
    outcome = run("export", damaged, "orders", "-o", out)
    assert outcome.code == 3
    assert "--skip-damaged" in outcome.err
    assert not out.exists()
    folder = tmp_path / "out"
    outcome = run("export", damaged, "orders", "-o", folder)
    assert outcome.code == 3
    assert "use --resume to continue" in outcome.err
    assert len(all_rows(folder)) == 301
    outcome = run("export", damaged, "orders", "-o", folder, "--resume", "--skip-damaged")
    assert outcome.code == 4
    assert "1 damaged record" in outcome.err
    assert len(all_rows(folder)) == COUNT - 1
    report = run_json("export", damaged, "orders", "-o", out, "--skip-damaged", "--json")
    assert report["skipped"] == 1
    assert report["messages"] == COUNT - 1


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    with open_small(tmp_path / "large") as store:
        for _ in range(4):
            store.append_many("orders", [b"%d" % number for number in range(10_000)])
    return tmp_path / "large"


def begin(path: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start an export of many small parts, and wait for the first of them."""
    command = [sys.executable, "-m", "cometmq", "export", path, "-o", out, "--format", "jsonl", "--part-size", "100K"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(out.glob("part-*.jsonl")) and process.poll() is None:
        time.sleep(0.002)
    return process


def jsonl_bodies(out: Path) -> list[int]:
    lines = (line for part in sorted(out.glob("part-*.jsonl")) for line in part.read_text("utf-8").splitlines())
    return [int(json.loads(line)["body"]) for line in lines]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_ended_by_a_signal_it_goes_on(large: Path, tmp_path: Path, kind: signal.Signals) -> None:
    out = tmp_path / "out"
    process = begin(large, out)
    os.kill(process.pid, kind)
    _, error = process.communicate(timeout=60)
    if kind == signal.SIGINT and process.returncode != 0:
        assert process.returncode == 130
        assert b"use --resume to continue" in error
        assert not list(out.glob("*.partial"))
    outcome = run("export", large, "-o", out, "--format", "jsonl", "--part-size", "100K", "--resume", "--json")
    assert json.loads(outcome.out)["messages"] == 40_000
    assert jsonl_bodies(out) == list(range(10_000)) * 4


def test_messages_that_expired_meanwhile_are_reported(tmp_path: Path, export: Export) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    with open_small(path) as store:
        store.append_many("orders", [b"x" * 1000] * 5000)
    export(path, out, stop_after(4))
    done = len(all_rows(out))
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (0, 0))
    with open_small(path, retention=retention_on_request(1)) as store:
        assert store.expire() > 0
        low = store.min_offset("orders")
    assert 0 < done < low
    outcome = run("export", path, "orders", "-o", out, "--resume", "--compression", "none")
    assert outcome.code == 0
    assert f"{low - done:,} messages expired" in outcome.err
    assert [row["queue_offset"] for row in all_rows(out)] == [*range(done), *range(low, 5000)]


def test_progress_is_for_terminals(path: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m cometmq export {path} orders -o {tmp_path / 'orders.csv'}"
    leader, follower = os.openpty()
    shown = bytearray()

    def read_all() -> None:
        # Beside the command: on a slow machine there are more lines than the terminal holds.
        with suppress(OSError):  # the last writer has closed it
            while data := os.read(leader, 1 << 16):
                shown.extend(data)

    reader = threading.Thread(target=read_all)
    reader.start()
    try:
        done = subprocess.run(command.split(), stdout=subprocess.PIPE, stderr=follower, timeout=60, check=True)
    finally:
        os.close(follower)
        reader.join(60)
        os.close(leader)
    assert b"exported 500 messages" in done.stdout
    assert b"exporting" in shown


def test_a_full_disk(path: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        with open_small(tmp_path / "store") as store:
            store.append_many("orders", [b"%d" % number * 200 for number in range(1000)])
        out = disk / "out"
        arguments = ("export", path, "orders", "-o", out, "--format", "jsonl", "--part-size", "64K")
        outcome = run(*arguments)
        assert outcome.code == 3
        assert "No space left" in outcome.err
        assert "use --resume to continue" in outcome.err
        assert not list(out.glob("*.partial"))
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        assert run(*arguments, "--resume").code == 0
        lines = [line for part in sorted(out.glob("part-*")) for line in part.read_text("utf-8").splitlines()]
        assert [json.loads(line)["body"] for line in lines] == [row["body"].decode() for row in expected(path)]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_resuming_a_complete_export_says_that_nothing_is_exported(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", [b"1", b"2"])
    out = tmp_path / "out"
    assert run("export", tmp_path / "store", "t", "-o", out).code == 0
    with open_small(tmp_path / "store") as store:
        store.append("t", b"3")
    outcome = run("export", tmp_path / "store", "t", "-o", out, "--resume")
    assert outcome.code == 0
    assert outcome.out.startswith(
        f"nothing to resume: the export in {out} is complete (2 messages in 1 file); --since-last adds the messages"
    )
    report = run_json("export", tmp_path / "store", "t", "-o", out, "--resume", "--json")
    assert (report["was_complete"], report["messages"]) == (True, 2)


LONG = bool(os.environ.get("CMQ_LONG"))
LARGE_BODY = 3 << 20 if LONG else 3 << 10
LARGE_COUNT = (1 << 31) // (3 << 20) + 10


@pytest.mark.timeout(900)
def test_exports_and_batches_of_more_than_two_gib(tmp_path: Path) -> None:
    """Without ``CMQ_LONG=1`` bodies have a thousandth of their size."""
    noise = os.urandom(LARGE_BODY)
    bodies = [b"%08d" % number + noise[8:] for number in range(LARGE_COUNT)]
    path = tmp_path / "store"
    with cometmq.open(path, flush="async", default_queues=1) as store:
        store.append_many("t", bodies)

    def check(batches: Any) -> None:
        """The rows are all of them, in order; each is looked at as it comes."""
        seen = 0
        for batch in batches:
            assert batch.nbytes < 1 << 31
            for body in batch.column("body"):
                assert body.as_py() == bodies[seen]
                seen += 1
        assert seen == LARGE_COUNT

    with cometmq.open(path, mode="r") as store:
        check(store.scan("t", columns=["body"], body="binary", batch_rows=1 << 20, batch_bytes=1 << 30))
        table = store.scan("t", columns=["body"], body="binary", batch_rows=1 << 20, batch_bytes=1 << 30).to_table()
        assert table.num_rows == LARGE_COUNT
        del table
    common = ("export", path, "t", "--columns", "body")
    assert run(*common, "-o", tmp_path / "t.parquet", "--compression", "none").code == 0
    check(pq.ParquetFile(tmp_path / "t.parquet").iter_batches(64))
    (tmp_path / "t.parquet").unlink()
    assert run(*common, "-o", tmp_path / "t.arrow").code == 0
    with pa.ipc.open_file(tmp_path / "t.arrow") as file:
        check(file.get_batch(at) for at in range(file.num_record_batches))
    (tmp_path / "t.arrow").unlink()
    assert run(*common, "-o", tmp_path / "t.jsonl", "--body", "base64").code == 0
    with (tmp_path / "t.jsonl").open("rb") as lines:
        for number, line in enumerate(lines):
            assert base64.b64decode(json.loads(line)["body"]) == bodies[number]
    assert number == LARGE_COUNT - 1


# --- Since last time


def append_orders(path: Path, first: int, count: int) -> None:
    with open_small(path) as store:
        numbers = range(first, first + count)
        store.append_many("orders", [b"%d" % number for number in numbers], queue=[number % 3 for number in numbers])


def test_since_last_adds_the_messages_stored_since_the_last_run(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["export", path, "orders", "-o", out, "--since-last"]
    assert run(*command).out.startswith("exported 500 messages")
    outcome = run(*command)
    assert outcome.code == 0
    assert outcome.out.startswith(
        f"up to date: no messages were stored since the last run; {out} has 500 messages in 1"
    )
    append_orders(path, 500, 70)
    outcome = run(*command)
    assert outcome.code == 0
    assert outcome.out.startswith("added 70 messages to 570 messages")
    append_orders(path, 570, 1)
    report = run_json(*command, "--json")
    assert (report["messages"], report["added"], report["was_complete"], report["resumed"]) == (571, 1, False, True)
    assert [part["rows"] for part in report["parts"]] == [500, 70, 1]
    assert all_rows(out) == expected(path)
    assert run_json(*command, "--json")["was_complete"]


def test_since_last_adds_new_queues_and_topics(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("export", path, "-o", out, "--since-last").code == 0
    with open_small(path) as store:
        store.append_many("later", [b"x"] * 5)
        store.append("others", b"y")
    assert run("export", path, "-o", out, "--since-last").code == 0
    assert [row["topic"] for row in all_rows(out)][503:] == ["later"] * 5 + ["others"]


@pytest.mark.parametrize("partition_by", [[], [PartitionBy.QUEUE]])
def test_since_last_stopped_anywhere_has_each_row_once(
    path: Path, tmp_path: Path, export: Export, partition_by: list[PartitionBy]
) -> None:
    for calls in (0, 2, 5):
        out = tmp_path / f"out-{calls}"
        runs = 0
        while True:
            report = export(
                path, out, stop_after(calls if runs < 6 else 1_000), since_last=True, partition_by=partition_by
            )
            runs += 1
            if runs in (3, 5):
                append_orders(path, 1_000 * runs, 40)
            elif report.complete and runs > 6:
                break
        pattern = "queue_id=*/part-*" if partition_by else "part-*"
        found = [row["body"] for part in sorted(out.glob(pattern)) for row in pq.read_table(part).to_pylist()]
        assert sorted(found) == sorted(row["body"] for row in expected(path))
        known = {part.name for part in report.parts}
        assert {part.relative_to(out).as_posix() for part in out.glob(pattern)} == known


def test_since_last_refuses_a_topic_that_was_made_again(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("export", path, "orders", "-o", out, "--since-last").code == 0
    with open_small(path) as store:
        store.delete_topic("orders")
        store.create_topic("orders", queues=3)
    append_orders(path, 0, 900)
    outcome = run("export", path, "orders", "-o", out, "--since-last")
    assert outcome.code == 3
    assert "the topic was deleted and made again; export into another folder" in outcome.err
    assert len(all_rows(out)) == 500


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-o", "x.csv", "--since-last"], 2, "x.csv is a file: --since-last needs a folder"),
        (["-o", "x.csv", "--partition-by", "day"], 2, "x.csv is a file: --partition-by needs a folder"),
        (["-o", "x", "--since-last", "--resume"], 2, "--since-last excludes --resume and --overwrite"),
        (["-o", "x", "--since-last", "--overwrite"], 2, "--since-last excludes --resume and --overwrite"),
        (["-o", "x", "--since-last", "--limit", "5"], 3, "--limit counts the messages of all runs"),
        (["orders", "-o", "x", "--since-last", "--key", "o-1"], 3, "by keys or of light queues"),
        (["-o", "x", "--partition-by", "hour"], 2, "'hour' is not day, topic or queue_id"),
        (["-o", "x", "--partition-by", "day,day"], 3, "a partition is named twice"),
        (["-o", "x", "--partition-by", "topic", "--columns", "topic"], 3, "the files would have no column"),
        (["-o", "x", "--partition-by", "day", "--schema", "day text"], 3, "the schema has a column day"),
        (["-o", "x", "--partition-by", "topic", "--schema", "topic text"], 3, "the schema has a column topic"),
        (["-o", "x", "--partition-by", "queue_id", "--schema", "queue_id int"], 3, "the schema has a column queue_id"),
        (["-o", "x", "--schema", "id"], 3, "'id' is not a name with a type"),
        (["-o", "x", "--schema", "id int", "--infer"], 2, "--schema and --infer exclude each other"),
        (["-o", "x", "--infer", "--body-format", "csv"], 2, "CSV lines have no names; give --schema"),
        (["-o", "x", "--body-format", "csv"], 2, "--body-format is about decoded bodies: give --schema"),
        (["-o", "x", "--schema", "id int", "--body-format", "xml"], 3, 'body_format is "json" or "csv", not \'xml\''),
        (["-o", "x", "--infer"], 3, "cannot infer a schema of all topics: none of the 503 bodies"),
    ],
)
def test_wrong_options_of_later_runs_partitions_and_schemas(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(path, arguments, code, text)


# --- Partitions


def test_partitions_by_day_topic_and_queue(path: Path, tmp_path: Path) -> None:
    with open_small(path) as store:
        store.append("%RETRY%mailer", b"r")
    out = tmp_path / "out"
    report = run_json("export", path, "-o", out, "--partition-by", "topic,queue_id,day", "--json")
    with cometmq.open(path, mode="r") as store:
        times = [message.store_timestamp_ms / 1000 for message in store.read()]
    days = {datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d") for time in times}
    places = {"%25RETRY%25mailer": [0], "orders": [0, 1, 2], "others": [0]}
    folders = {f"topic={topic}/queue_id={queue}" for topic, queues in places.items() for queue in queues}
    assert {part["name"].rsplit("/", 2)[0] for part in report["parts"]} == folders
    assert {part["name"].split("/")[2] for part in report["parts"]} <= {f"day={day}" for day in days}
    table = pyarrow.dataset.dataset(out, format="parquet", partitioning="hive").to_table()
    keys = ["topic", "queue_id", "queue_offset"]
    found = sorted((tuple(row[key] for key in keys), row["body"]) for row in table.to_pylist())
    assert found == sorted((tuple(row[key] for key in keys), row["body"]) for row in expected(path, None))
    file = pq.ParquetFile(out / report["parts"][0]["name"])
    assert set(file.schema_arrow.names) == set(DEFAULT_COLUMNS) - {"topic", "queue_id"}
    again = run_json("export", path, "orders", "-o", out, "--overwrite", "--json")
    assert {path.relative_to(out).as_posix() for path in out.rglob("*")} == {
        STATE_NAME,
        LOCK_NAME,
        *(part["name"] for part in again["parts"]),
    }


def test_a_topic_whose_folder_would_have_too_long_a_name_is_refused(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("|" * 84, b"x")
    outcome = run("export", tmp_path / "store", "-o", tmp_path / "out", "--partition-by", "topic")
    assert outcome.code == 3
    assert "would have a name of 258 bytes" in outcome.err
    assert "leave topic out of --partition-by" in outcome.err


@pytest.mark.parametrize("partition_by", ["", "topic,queue_id"])
@pytest.mark.parametrize("option", ["--since-last", "--overwrite"])
def test_a_run_leaves_other_exports_and_files_below_its_folder_alone(
    path: Path, tmp_path: Path, option: str, partition_by: str
) -> None:
    lake = tmp_path / "lake"
    command = ["export", path, "orders", "-o", lake, *(["--partition-by", partition_by] if partition_by else [])]
    first = run_json(*command, "--json")
    for inner in (lake / "payments", lake / "topic=orders" / "payments", lake / "topic=theirs" / "queue_id=0" / "more"):
        assert run("export", path, "others", "-o", inner).code == 0
    mine = lake / first["parts"][0]["name"]
    theirs = [mine.with_name(name) for name in ("part-merged.parquet", "part-00000.csv", "part-1.parquet")]
    theirs.append(mine.with_name("part-00009.parquet") / "part-00000.parquet")
    theirs.append(lake / "month=5" / "part-00000.parquet")
    for file in theirs:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"theirs")
    empty = lake / "notes=1"
    empty.mkdir()
    mine.with_name("part-00001.parquet.partial").write_bytes(b"left by a run that died")
    mine.with_name("part-00001.parquet").write_bytes(b"left by a run that died")
    before = {file for file in lake.rglob("*") if "part-00001" not in file.name}
    assert run(*command, option).code == 0
    assert set(lake.rglob("*")) == before


def test_an_overwritten_export_leaves_no_folders_of_its_partitions(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("export", path, "-o", out, "--partition-by", "topic,queue_id", "--format", "csv").code == 0
    assert run("export", path, "others", "-o", out, "--overwrite").code == 0
    assert names(out) == {STATE_NAME, LOCK_NAME, "part-00000.parquet"}


def test_a_run_into_a_folder_that_another_run_writes_into_is_refused(
    path: Path, tmp_path: Path, export: Export
) -> None:
    out = tmp_path / "out"
    refusals: list[str] = []

    def stopped() -> bool:
        if not refusals:
            for option in ("--since-last", "--resume", "--overwrite"):
                outcome = run("export", path, "orders", "-o", out, option)
                assert outcome.code == 3
                refusals.append(outcome.err)
        return False

    report = export(path, out, stopped)
    assert all("another run is exporting into" in text for text in refusals)
    assert report.complete
    assert all_rows(out) == expected(path)
    assert run("export", path, "orders", "-o", out, "--overwrite").code == 0


def test_days_are_of_storing_and_utc(path: Path, tmp_path: Path, export: Export) -> None:
    """The clock of messages is not ours to set, so the batch is made up."""
    midnight = 1_795_737_600_000  # 2026-11-27
    times = [midnight - 1, midnight, midnight + 86_400_000 - 1, midnight + 86_400_000, midnight]
    column = pa.array(times, pa.timestamp("ms", "UTC"))
    batch = pa.RecordBatch.from_arrays([column], names=[PartitionBy.DAY.column.name])
    with cometmq.open(path, mode="r") as store:
        exporter = Exporter(
            store.handle,
            store.scan("orders", columns=["queue_offset"]).query,
            FileKind(FileFormat.PARQUET, "none"),
            bytes_as=BytesAs.BINARY,
            part_bytes=4000,
            partition_by=[PartitionBy.DAY],
        )
    assert [(folder, rows.to_pylist()) for folder, rows in exporter._partitions(batch)] == [
        ("day=2026-11-26", [0]),
        ("day=2026-11-27", [1, 2, 4]),
        ("day=2026-11-28", [3]),
    ]


def test_more_partitions_than_open_files(tmp_path: Path, export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.arrow.exporting._OPEN_FILES", 3)
    path = tmp_path / "store"
    with open_small(path) as store:
        store.create_topic("orders", queues=10)
        store.append_many("orders", [b"%d" % number for number in range(200)], queue=[n % 10 for n in range(200)])
    report = export(path, tmp_path / "out", lambda: False, partition_by=[PartitionBy.QUEUE])
    assert report.complete
    assert sum(part.rows for part in report.parts) == 200
    found = [
        int(row["body"])
        for part in sorted(tmp_path.glob("out/queue_id=*/part-*"))
        for row in pq.read_table(part).to_pylist()
    ]
    assert sorted(found) == list(range(200))
    assert not list(tmp_path.rglob("*.partial"))


def test_later_runs_keep_the_schema_that_was_inferred(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "out"
    command = ["export", path, "t", "-o", out, "--infer", "--since-last", "--columns", "queue_offset"]
    for body in (b'{"a b": 1, "c": {"x,y": [1]}}', b'{"a b": 2, "new": 5}'):
        with open_small(path) as store:
            store.append("t", body)
        assert run(*command).code == 0
    assert all_rows(out) == [
        {"queue_offset": 0, "a b": 1, "c": {"x,y": [1]}},
        {"queue_offset": 1, "a b": 2, "c": None},
    ]
    outcome = run("export", path, "t", "-o", out, "--schema", "x int", "--since-last", "--columns", "queue_offset")
    assert outcome.code == 3
    assert "was begun with --schema" in outcome.err
    assert '; this run has --schema "x" int64: use the same options to continue, or another folder' in outcome.err
    outcome = run("export", path, "t", "-o", out, "--since-last", "--columns", "queue_offset")
    assert outcome.code == 3
    assert "; this run has neither --schema nor --infer: use the same options" in outcome.err
