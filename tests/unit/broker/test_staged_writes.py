"""Checks: staged files brought over the wire are appended once or not at all, whoever asks again, and nothing is taken
beyond the limits, out of order, under a bad name, or where it is off.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cometmq.remoting.bodies.staged_writes import CommitStagedJobRequestBody, StagedFileEntry
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.lanes import Lanes
from cometmq.store.handoff_files import HandoffFolder
from cometmq.store.staged_files import StagedFolder
from support.broker_twins import LaneCaller, Rig

ON: dict[str, object] = {"stagedWritesEnable": True}
BUSY, WRONG = ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR
DAY_MS = 86_400_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, settings=ON) as rig:
        rig.store.append("t", b"first")
        yield rig


def arrow(*bodies: bytes, **columns: pa.Array) -> bytes:
    """A staged file."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary()), **columns})
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def begin(rig: Rig, job: str | None = "j") -> Command:
    answer: Command = rig.run(RequestCode.BEGIN_STAGED_JOB, {} if job is None else {"job": job})
    return answer


def fields_of(
    piece: bytes, position: int = 0, *, job: str = "j", file: str = "a.arrow", **other: str
) -> dict[str, str]:
    return {"job": job, "file": file, "position": str(position), "crc": str(zlib.crc32(piece)), **other}


def put(rig: Rig, piece: bytes, position: int = 0, **other: str) -> Command:
    answer: Command = rig.run(RequestCode.PUT_STAGED_PIECE, fields_of(piece, position, **other), piece)
    return answer


def entry(content: bytes, rows: int = 1, name: str = "a.arrow", **other: Any) -> StagedFileEntry:
    values: dict[str, Any] = {"size_bytes": len(content), "crc32": zlib.crc32(content), **other}
    return StagedFileEntry(name=name, rows=rows, **values)


def commit_body(*files: StagedFileEntry, job: str = "j", key: str = "job-k", **other: Any) -> bytes:
    values: dict[str, Any] = {"topic": "t", "done_number": 0, "born_timestamp_ms": 5, **other}
    return CommitStagedJobRequestBody(job=job, files=files, done_key=key, **values).to_json()


def commit(rig: Rig, *files: StagedFileEntry, **other: Any) -> Command:
    answer: Command = rig.run(RequestCode.COMMIT_STAGED_JOB, body=commit_body(*files, **other))
    return answer


def outcome(answer: Command) -> str:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.fields["outcome"]


def stage(rig: Rig, *bodies: bytes, job: str = "j") -> StagedFileEntry:
    """Begin a job and bring one file."""
    content = arrow(*bodies)
    assert begin(rig, job).code == ResponseCode.SUCCESS
    assert put(rig, content, job=job).code == ResponseCode.SUCCESS
    return entry(content, len(bodies))


def bodies(rig: Rig, topic: str = "t") -> list[bytes]:
    return [bytes(message) for message in rig.store.read(topic)]


def left_over(rig: Rig) -> list[str]:
    folder = rig.store.path / "cometmq" / "staged"
    return sorted(one.name for one in folder.iterdir() if one.name != "done") if folder.exists() else []


def settled(rig: Rig) -> list[str]:
    """The same when the writer's thread, which removes what it has appended, is done."""
    rig.store.apply_handoffs()
    return left_over(rig)


def stop_applying(rig: Rig) -> None:
    """Let work wait."""
    watcher = rig.store._watcher
    assert watcher is not None
    watcher.stop()


# --- What is done


def test_a_job_in_pieces(rig: Rig) -> None:
    assert begin(rig, None).fields == {"bodyBytesMax": str(4 << 20), "pieceBytesMax": str(4 << 20)}
    assert left_over(rig) == [], "nothing is begun by asking"
    first, second = arrow(b"a", b"b"), arrow(b"c", topic=pa.array(["u"]))
    assert begin(rig).fields["pieceBytesMax"] == str(4 << 20)
    owner = json.loads((rig.store.path / "cometmq/staged/wire-j/owner.json").read_text())
    assert owner == {"wire": "127.0.0.1:40001"}
    for position in range(0, len(first), 100):
        assert put(rig, first[position : position + 100], position).code == ResponseCode.SUCCESS
    assert put(rig, second, file="b.arrow").code == ResponseCode.SUCCESS
    assert put(rig, second[:50], file="attempt-that-failed.arrow").code == ResponseCode.SUCCESS
    assert bodies(rig) == [b"first"]
    files = (entry(first, 2), entry(second, name="b.arrow"))
    assert outcome(commit(rig, *files, topic_queues=3)) == "done"
    assert bodies(rig) == [b"first", b"a", b"b"]
    assert bodies(rig, "u") == [b"c"]
    assert rig.store.topic("u").write_queues == 3
    assert settled(rig) == []


def test_a_new_topic_gets_the_brokers_number_of_queues(rig: Rig) -> None:
    assert outcome(commit(rig, stage(rig, b"a"), topic="new")) == "done"
    assert rig.store.topic("new").write_queues == rig.config.settings.default_topic_queue_nums


def test_asking_again_changes_nothing(rig: Rig) -> None:
    content = arrow(b"a")
    for _ in range(2):
        assert begin(rig).code == ResponseCode.SUCCESS
    for position in (0, 100, 0, 100):
        assert put(rig, content[position : position + 100], position).code == ResponseCode.SUCCESS
    assert put(rig, content[200:], 200).code == ResponseCode.SUCCESS
    assert [outcome(commit(rig, entry(content))) for _ in range(3)] == ["done", "before", "before"]
    assert bodies(rig) == [b"first", b"a"]


def test_a_key_is_done_once(rig: Rig) -> None:
    assert outcome(commit(rig, stage(rig, b"a"), key="query-q", done_number=7)) == "done"
    for number, expected in ((7, "before"), (6, "before"), (8, "done")):
        staged = stage(rig, b"%d" % number, job=f"later-{number}")
        assert outcome(commit(rig, staged, job=f"later-{number}", key="query-q", done_number=number)) == expected
    assert bodies(rig) == [b"first", b"a", b"8"]
    assert settled(rig) == []


def test_job_id_is_free_when_its_commit_is_answered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.staged_writes._WAIT_S", 0)
    stop_applying(rig)
    staged, again = stage(rig, b"a"), []
    assert outcome(commit(rig, staged)) == "waiting"
    remove_work = HandoffFolder.remove_work

    def remove_and_stage_again(folder: HandoffFolder, names: Sequence[str]) -> tuple[str, ...]:
        kept = remove_work(folder, names)
        if names and not again:
            assert outcome(commit(rig, staged)) == "before"
            again.append(stage(rig, b"b"))
        return kept

    monkeypatch.setattr(HandoffFolder, "remove_work", remove_and_stage_again)
    rig.store.apply_handoffs()
    assert outcome(commit(rig, *again, key="other")) == "waiting"
    rig.store.apply_handoffs()
    assert bodies(rig) == [b"first", b"a", b"b"]
    assert left_over(rig) == []


def test_job_id_is_free_when_its_rejection_is_answered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.staged_writes._WAIT_S", 0)
    stop_applying(rig)
    damaged, again = replace(stage(rig, b"a"), crc32=1), []
    assert outcome(commit(rig, damaged)) == "waiting"
    reject = HandoffFolder.reject

    def reject_and_stage_again(folder: HandoffFolder, name: str, reason: str) -> None:
        reject(folder, name, reason)
        assert commit(rig, damaged).code == ResponseCode.MESSAGE_ILLEGAL
        assert rig.run(RequestCode.ABANDON_STAGED_JOB, {"job": "j"}).code == ResponseCode.SUCCESS
        again.append(stage(rig, b"b"))

    monkeypatch.setattr(HandoffFolder, "reject", reject_and_stage_again)
    rig.store.apply_handoffs()
    assert outcome(commit(rig, *again, key="other")) == "waiting"
    rig.store.apply_handoffs()
    assert bodies(rig) == [b"first", b"b"]


def test_a_commit_that_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.staged_writes._WAIT_S", 0)
    stop_applying(rig)
    staged, other = stage(rig, b"a"), stage(rig, b"other", job="again")
    assert [outcome(commit(rig, staged)) for _ in range(2)] == ["waiting", "waiting"]
    assert put(rig, b"late", len(arrow(b"a"))).remark == "the job wire-j was committed and takes no more"
    assert put(rig, b"late", file="late.arrow").code == WRONG
    assert rig.run(RequestCode.ABANDON_STAGED_JOB, {"job": "j"}).code == ResponseCode.SUCCESS
    assert left_over(rig) == ["wire-again", "wire-j"], "committed files are not given up"
    assert outcome(commit(rig, other, job="again")) == "waiting", "the same key, from a restarted driver"
    assert left_over(rig) == ["wire-j"]
    rig.store.apply_handoffs()
    assert outcome(commit(rig, staged)) == "before"
    assert bodies(rig) == [b"first", b"a"]


def test_work_that_the_writer_rejects(rig: Rig) -> None:
    nonsense = b"no arrow file"
    begin(rig)
    put(rig, nonsense)
    for _ in range(2):
        answer = commit(rig, entry(nonsense))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert "does not begin as an Arrow file" in answer.remark
    assert (bodies(rig), settled(rig)) == ([b"first"], [])
    assert outcome(commit(rig, stage(rig, b"a", job="mended"), job="mended")) == "done", "the key is still free"


def test_a_wrong_checksum_of_the_whole(rig: Rig) -> None:
    staged = stage(rig, b"a")
    answer = commit(rig, StagedFileEntry(name="a.arrow", rows=1, size_bytes=staged.size_bytes, crc32=1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert "checksum" in answer.remark
    assert bodies(rig) == [b"first"]


def test_the_next_run_goes_on(tmp_path: Path) -> None:
    content = arrow(b"a", b"b")
    with Rig(tmp_path, settings=ON) as rig:
        begin(rig)
        put(rig, content[:100])
        done = stage(rig, b"x", job="done")
        assert outcome(commit(rig, done, job="done", key="job-x")) == "done"
    with Rig(tmp_path, settings=ON) as rig:
        assert put(rig, content[150:], 150).code == WRONG, "the file's end is known"
        assert put(rig, content[100:], 100).code == ResponseCode.SUCCESS
        assert outcome(commit(rig, entry(content, 2))) == "done"
        assert outcome(commit(rig, done, job="done", key="job-x")) == "before"
        assert bodies(rig) == [b"x", b"a", b"b"]


def test_staged_write_is_applied_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.staged_writes._WAIT_S", 0)
    with Rig(tmp_path, settings=ON) as rig:
        stop_applying(rig)
        staged = stage(rig, b"a")
        assert outcome(commit(rig, staged)) == "waiting"
    with Rig(tmp_path, settings=ON) as rig:
        assert bodies(rig) == [b"a"]
        assert outcome(commit(rig, staged)) == "before"
        assert bodies(rig) == [b"a"]


# --- Giving up


def test_giving_up(rig: Rig) -> None:
    for job in ("s-1", "s-2", "sx-1", "other"):
        stage(rig, b"a", job=job)
    assert rig.run(RequestCode.ABANDON_STAGED_JOB, {"scope": "s"}).code == ResponseCode.SUCCESS
    assert left_over(rig) == ["wire-other", "wire-sx-1"]
    for _ in range(2):
        assert rig.run(RequestCode.ABANDON_STAGED_JOB, {"job": "other"}).code == ResponseCode.SUCCESS
    assert left_over(rig) == ["wire-sx-1"]
    assert put(rig, b"x", job="other").remark == "there is no job wire-other: it was never begun, or has been given up"
    assert commit(rig, entry(b"x"), job="other").code == WRONG
    for fields in ({}, {"job": "a", "scope": "b"}, {"scope": ""}, {"job": "../x"}):
        assert rig.run(RequestCode.ABANDON_STAGED_JOB, fields).code == WRONG


def test_jobs_that_are_not_heard_of_are_given_up(tmp_path: Path) -> None:
    settings = {**ON, "stagedJobExpireTime": 60_000}
    with Rig(tmp_path, settings=settings) as rig:
        stage(rig, b"old", job="old")
        stage(rig, b"kept", job="kept")
        assert outcome(commit(rig, stage(rig, b"a"), key="once-j")) == "done"
        assert outcome(commit(rig, stage(rig, b"b", job="k"), job="k", key="job-k")) == "done"
        asyncio.run(rig.control.staged_writes.sweep())
        rig.clock.move(30_000)
        put(rig, b"x", job="kept", file="more.arrow")
        rig.clock.move(30_000)
        notes = rig.store.path / "cometmq" / "staged" / "done"
        asyncio.run(rig.control.staged_writes.sweep())
        assert settled(rig) == ["wire-kept"]
        assert [note.name for note in notes.iterdir()] == ["job-k.json"], (
            "a batch without a name is not asked for again"
        )
        assert put(rig, b"x", job="old").code == WRONG
        assert put(rig, b"x", job="kept", file="yet.arrow").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("set_by_ms", [30 * DAY_MS, -30 * DAY_MS])
def test_jobs_and_notes_live_as_long_when_the_wall_clock_is_set(tmp_path: Path, set_by_ms: int) -> None:
    """Neither lost early, nor kept: their ages are lengths of time. The files' times are set as the clock would."""
    settings = {**ON, "stagedJobExpireTime": 60_000}
    with Rig(tmp_path, settings=settings) as rig:
        begin(rig, "j")
        assert outcome(commit(rig, stage(rig, b"a", job="k"), job="k", key="once-k")) == "done"
        notes = rig.store.path / "cometmq" / "staged" / "done"
        asyncio.run(rig.control.staged_writes.sweep())
        rig.clock.move(59_999)
        rig.clock.set(set_by_ms)
        written_s = time.time() - set_by_ms / 1_000
        os.utime(notes / "once-k.json", (written_s, written_s))
        asyncio.run(rig.control.staged_writes.sweep())
        assert (settled(rig), [note.name for note in notes.iterdir()]) == (["wire-j"], ["once-k.json"])
        rig.clock.move(1)
        asyncio.run(rig.control.staged_writes.sweep())
        assert (settled(rig), list(notes.iterdir())) == ([], [])


def test_notes_of_the_last_run_are_as_old_as_their_files(tmp_path: Path) -> None:
    settings = {**ON, "stagedJobExpireTime": 60_000}
    with Rig(tmp_path, settings=settings) as rig:
        for key in ("once-old", "once-new"):
            assert outcome(commit(rig, stage(rig, b"a", job=key), job=key, key=key)) == "done"
    notes = tmp_path / "cometmq" / "staged" / "done"
    (notes / "once-no key.json").touch()  # somebody else's
    written_s = time.time() - 59
    os.utime(notes / "once-old.json", (written_s, written_s))
    with Rig(tmp_path, settings=settings) as rig:
        rig.clock.move(30_000)
        asyncio.run(rig.control.staged_writes.sweep())
        assert sorted(note.name for note in notes.iterdir()) == ["once-new.json", "once-no key.json"]


def test_a_job_whose_folder_went_is_forgotten(rig: Rig) -> None:
    stage(rig, b"a")
    StagedFolder(rig.store.path).remove("wire-j")
    answer = put(rig, b"x", file="b.arrow")
    assert (answer.code, answer.remark) == (WRONG, "there is no job wire-j: it was never begun, or has been given up")
    asyncio.run(rig.control.staged_writes.sweep())
    assert rig.control.staged_writes._jobs == {}


# --- What is refused


def test_it_is_off_unless_it_is_set(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        answers = [begin(rig, None), begin(rig), put(rig, b"x"), commit(rig, entry(b"x"))]
        answers.append(rig.run(RequestCode.ABANDON_STAGED_JOB, {"job": "j"}))
        assert {(one.code, one.remark) for one in answers} == {
            (ResponseCode.NO_PERMISSION, "staged writes are off: set stagedWritesEnable=true")
        }
        assert left_over(rig) == []


def test_a_broker_that_may_not_be_written_to(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={**ON, "brokerPermission": 4}) as rig:
        for job in (None, "j"):
            answer = begin(rig, job)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark is not None
            assert "brokerPermission" in answer.remark
        assert commit(rig, entry(b"x")).code == ResponseCode.NO_PERMISSION


BAD_NAMES = ["", ".", "..", "../x", "a/b", ".hidden", "a\0b", "ä", "x" * 152]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names(rig: Rig, name: str) -> None:
    begin(rig)
    before = left_over(rig)
    assert begin(rig, name).code == WRONG
    assert put(rig, b"x", job=name).code == WRONG
    for file in (name, f"{name}.arrow" if name else ".arrow", "owner.json", "a.tmp"):
        assert put(rig, b"x", file=file).code == WRONG
        assert commit(rig, entry(b"x", name=file)).code == WRONG
    assert commit(rig, entry(b"x"), job=name).code == WRONG
    assert commit(rig, entry(b"x"), key=name.ljust(221, "x") if len(name) > 100 else name).code == WRONG
    assert left_over(rig) == before
    assert [one.name for one in (rig.store.path / "cometmq/staged/wire-j").iterdir()] == ["owner.json"]


@pytest.mark.parametrize("name", ["job", "file", "position", "crc"])
def test_members_of_a_piece(rig: Rig, name: str) -> None:
    begin(rig)
    fields = fields_of(b"x")
    for value in (None, "nonsense" if name in ("position", "crc") else ""):
        changed = {key: text for key, text in {**fields, name: value}.items() if text is not None}
        assert rig.run(RequestCode.PUT_STAGED_PIECE, changed, b"x").code == WRONG


def test_pieces_that_are_refused(rig: Rig) -> None:
    assert put(rig, b"x").code == WRONG, "there is no job"
    begin(rig)
    assert put(rig, b"x", 1).remark == "the piece begins at 1, and the file a.arrow has 0 bytes"
    assert put(rig, b"x", -1).code == WRONG
    assert put(rig, b"x", 2**63 - 1).code == WRONG
    assert put(rig, b"x" * ((4 << 20) + 1)).code == WRONG
    assert put(rig, b"").code == WRONG
    assert put(rig, b"x", crc="1").remark == "the piece's checksum is wrong"
    assert put(rig, b"y", 1).code == WRONG, "a piece that was refused is not there"
    assert put(rig, b"xy").code == ResponseCode.SUCCESS
    assert put(rig, b"z", 3).code == WRONG


def test_a_link_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    begin(rig)
    target = tmp_path / "precious"
    target.write_bytes(b"kept")
    (rig.store.path / "cometmq/staged/wire-j/a.arrow").symlink_to(target)
    assert put(rig, b"x").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert target.read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rows": 0}, "has 0 rows"),
        ({"rows": -1}, "has -1 rows"),
        ({"size_bytes": 0}, "0 bytes"),
        ({"size_bytes": 7}, "has 7 bytes, and"),
        ({"crc32": 1 << 32}, "checksum"),
        ({"name": "missing.arrow"}, "none of its bytes are here"),
    ],
)
def test_files_of_a_commit_that_are_refused(rig: Rig, changes: dict[str, Any], text: str) -> None:
    stage(rig, b"a")
    answer = commit(rig, entry(arrow(b"a"), **changes))
    assert answer.code == WRONG
    assert answer.remark is not None
    assert text in answer.remark
    assert outcome(commit(rig, entry(arrow(b"a")))) == "done", "the job goes on"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"key": "a/b"}, WRONG),
        ({"done_number": -1}, WRONG),
        ({"topic_queues": -1}, WRONG),
        ({"topic_queues": 65_537}, WRONG),
        ({"born_timestamp_ms": -1}, WRONG),
        ({"topic": "a/b"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": None}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_commits_that_are_refused(rig: Rig, changes: dict[str, Any], code: int) -> None:
    staged = stage(rig, b"a")
    assert commit(rig, staged, **changes).code == code
    assert bodies(rig) == [b"first"]


def test_bodies_of_a_commit(rig: Rig) -> None:
    for body in (b"", b"{}", b"nonsense", b'{"job":"j","files":[1]}', commit_body(), commit_body(*[entry(b"x")] * 2)):
        assert rig.run(RequestCode.COMMIT_STAGED_JOB, body=body).code == WRONG


def test_random_requests_harm_nobody(rig: Rig) -> None:
    """Seeded; an accepted request has done no more than it says."""
    chosen = random.Random(20_261_122)
    begin(rig)
    texts = ["j", "../j", "a.arrow", "0", "-1", "9" * 25, "", "\0", "x" * 300]
    for _ in range(300):
        fields = {
            name: chosen.choice(texts) for name in ("job", "scope", "file", "position", "crc") if chosen.random() < 0.7
        }
        code = chosen.choice(
            [RequestCode.PUT_STAGED_PIECE, RequestCode.COMMIT_STAGED_JOB, RequestCode.BEGIN_STAGED_JOB]
        )
        answer = rig.run(code, fields, chosen.randbytes(chosen.randint(0, 40)))
        assert answer.code in (0, WRONG, ResponseCode.MESSAGE_ILLEGAL)
    assert bodies(rig) == [b"first"]
    assert set(left_over(rig)) <= {f"wire-{name}" for name in ("j", "a.arrow", "0", "-1", "9" * 25)}


# --- Limits


def test_no_more_jobs(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={**ON, "stagedJobsMax": 2}) as rig:
        first = stage(rig, b"a", job="a")
        begin(rig, "b")
        answer = begin(rig, "c")
        assert (answer.code, answer.remark) == (BUSY, "2 staged writes are under way (stagedJobsMax)")
        assert begin(rig, "b").code == ResponseCode.SUCCESS
        assert outcome(commit(rig, first, job="a")) == "done"
        assert begin(rig, "c").code == ResponseCode.SUCCESS


def test_no_more_bytes(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={**ON, "stagedBytesMax": 100}) as rig:
        begin(rig, "a")
        begin(rig, "b")
        assert put(rig, b"x" * 60, job="a").code == ResponseCode.SUCCESS
        answer = put(rig, b"x" * 41, job="b")
        assert (answer.code, answer.remark) == (BUSY, "staged writes hold 100 bytes already (stagedBytesMax)")
        assert put(rig, b"x" * 60, job="a").code == ResponseCode.SUCCESS, "the same bytes again are no more"
        assert put(rig, b"x" * 40, job="b").code == ResponseCode.SUCCESS
        assert put(rig, b"x", 40, job="b").code == BUSY
        rig.run(RequestCode.ABANDON_STAGED_JOB, {"job": "a"})
        assert put(rig, b"x", 40, job="b").code == ResponseCode.SUCCESS
    with Rig(tmp_path, settings={**ON, "stagedBytesMax": 100}) as rig:
        assert put(rig, b"x" * 60, 41, job="b").code == BUSY, "the next run counts what it finds"


def test_room_is_reserved_before_it_is_written(tmp_path: Path) -> None:
    async def race(rig: Rig) -> list[int]:
        piece = b"x" * 30
        asked = [rig.ask(RequestCode.PUT_STAGED_PIECE, fields_of(piece, file=f"{n}.arrow"), piece) for n in range(8)]
        return [answer.code for answer in await asyncio.gather(*asked)]

    with Rig(tmp_path, settings={**ON, "stagedBytesMax": 100}) as rig:
        begin(rig)
        codes = asyncio.run(race(rig))
        assert (codes.count(ResponseCode.SUCCESS), codes.count(BUSY)) == (3, 5)


def test_one_connection_leaves_the_disk_to_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pieces of the first connection wait for the disk; another connection's piece is written meanwhile."""
    let_go, write = threading.Event(), StagedFolder.put_piece

    def slow(folder: StagedFolder, job: str, file: str, position: int, data: bytes) -> None:
        if data == b"slow":
            let_go.wait()
        write(folder, job, file, position, data)

    async def check() -> None:
        lanes = Lanes(threads=3, at_once=2)

        def ask(conn: int, piece: bytes, file: str) -> asyncio.Task[Command]:
            fields = fields_of(piece, file=file)
            caller = LaneCaller(conn, lanes=lanes)
            return asyncio.ensure_future(rig.ask(RequestCode.PUT_STAGED_PIECE, fields, piece, caller=caller))

        asked = [ask(1, b"slow", f"{number}.arrow") for number in range(6)]
        other = await asyncio.wait_for(ask(2, b"quick", "other.arrow"), 60)
        assert other.code == ResponseCode.SUCCESS
        let_go.set()
        assert {answer.code for answer in await asyncio.gather(*asked)} == {ResponseCode.SUCCESS}
        lanes.close()

    begin(rig)
    monkeypatch.setattr(StagedFolder, "put_piece", slow)
    asyncio.run(check())


def test_a_long_commit_is_read_apart(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[threading.Thread] = []
    monkeypatch.setattr(
        "cometmq.broker.staged_writes._checked_file", lambda name: read.append(threading.current_thread()) or name
    )
    files = [entry(b"x", name=f"{number}.arrow") for number in range(100)]
    assert commit(rig, *files).code == WRONG
    assert len(read) == len(files)
    assert threading.current_thread() not in read


def test_no_more_files(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.staged_writes.FILES_OF_JOB_MAX", 2)
    monkeypatch.setattr("cometmq.broker.staged_writes.FILES_MAX", 3)
    begin(rig, "a")
    begin(rig, "b")
    for job, file in (("a", "1.arrow"), ("a", "2.arrow"), ("b", "1.arrow")):
        assert put(rig, b"x", job=job, file=file).code == ResponseCode.SUCCESS
    answer = put(rig, b"x", job="a", file="3.arrow")
    assert (answer.code, answer.remark) == (BUSY, "the job wire-a has 2 files")
    answer = put(rig, b"x", job="b", file="2.arrow")
    assert (answer.code, answer.remark) == (BUSY, "staged writes have 3 files already")
    assert put(rig, b"y", 1, job="b", file="1.arrow").code == ResponseCode.SUCCESS


def test_a_commit_does_not_overtake_a_piece(rig: Rig) -> None:
    content = arrow(b"a")

    async def race() -> list[Command]:
        piece = rig.ask(RequestCode.PUT_STAGED_PIECE, fields_of(content), content)
        whole = rig.ask(RequestCode.COMMIT_STAGED_JOB, body=commit_body(entry(content)))
        return await asyncio.gather(piece, whole)

    begin(rig)
    piece, early = asyncio.run(race())
    assert (piece.code, early.code) == (ResponseCode.SUCCESS, BUSY)
    assert outcome(commit(rig, entry(content))) == "done"


def test_many_commits_at_once_leave_the_work_once(rig: Rig) -> None:
    staged = stage(rig, b"a")

    async def race() -> list[Command]:
        return await asyncio.gather(
            *(rig.ask(RequestCode.COMMIT_STAGED_JOB, body=commit_body(staged)) for _ in range(8))
        )

    outcomes = [outcome(answer) for answer in asyncio.run(race())]
    assert sorted(outcomes) == ["before"] * 7 + ["done"]
    assert bodies(rig) == [b"first", b"a"]


def test_commits_at_once_that_fail_leave_the_job_open(rig: Rig) -> None:
    content = arrow(b"a")
    begin(rig)
    assert put(rig, content[:10]).code == ResponseCode.SUCCESS  # a part of it

    async def race() -> list[Command]:
        return await asyncio.gather(
            *(rig.ask(RequestCode.COMMIT_STAGED_JOB, body=commit_body(entry(content))) for _ in range(2))
        )

    assert all(answer.code != ResponseCode.SUCCESS for answer in asyncio.run(race()))
    assert put(rig, content[10:], 10).code == ResponseCode.SUCCESS
    assert outcome(commit(rig, entry(content))) == "done"


def test_a_disk_that_is_nearly_full(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(rig)
    space = SimpleNamespace(f_blocks=1000, f_frsize=4096, f_bfree=50, f_bavail=40)
    monkeypatch.setattr("cometmq.store.disk_space.os.statvfs", lambda path: space)
    answer = put(rig, b"x")
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is more than 95% full")
    space.f_bfree, space.f_bavail = 500, 490
    assert put(rig, b"x").code == ResponseCode.SUCCESS


def test_a_disk_that_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(rig)

    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(StagedFolder, "put_piece", fail)
        assert put(rig, b"x").code == ResponseCode.SERVICE_NOT_AVAILABLE
        patch.setattr(StagedFolder, "begin", fail)
        assert begin(rig, "other").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert put(rig, b"y", 1).code == WRONG, "nothing counts as written"
    staged = stage(rig, b"a", job="k")
    with monkeypatch.context() as patch:
        patch.setattr(HandoffFolder, "leave", fail)
        assert commit(rig, staged, job="k").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert outcome(commit(rig, staged, job="k")) == "done"
    assert list(rig.control.staged_writes._jobs) == ["wire-j"]


def test_no_topics_where_none_are_made(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={**ON, "autoCreateTopicEnable": False}) as rig:
        rig.store.append("t", b"first")
        answer = commit(rig, stage(rig, b"a"), topic="new")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert "there is no topic new" in answer.remark
        assert "cometmq topic create" in answer.remark
        assert outcome(commit(rig, stage(rig, b"b", job="k"), job="k")) == "done"
        assert bodies(rig) == [b"first", b"b"]
