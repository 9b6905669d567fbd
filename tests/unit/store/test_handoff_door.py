"""Checks: appends through the door of the store's writer: exactly once, in order, and by the folder where it fails."""

from __future__ import annotations

import shutil
import socket
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from cometmq import Store, errors
from cometmq.store import handoff_door
from cometmq.store.handoff import HandoffApplier
from cometmq.store.handoff_door import NOT_NOW, REJECTED, STORED, DoorBroken, DoorClient, door_name
from cometmq.store.handoff_files import CommitWork, HandoffFolder, MessagesWork, encode_work, new_work_id
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def writer(path: Path) -> Iterator[Store]:
    with open_small(path) as store:
        yield store


@pytest.fixture
def reader(path: Path, writer: Store) -> Iterator[Store]:
    with open_small(path, mode="r") as store:
        yield store


def bodies(store: Store) -> list[bytes]:
    return [bytes(message) for message in store.read("t")]


def work_of(*messages: bytes) -> MessagesWork:
    return MessagesWork(
        work_id=new_work_id(),
        topic="t",
        bodies=messages,
        tags=None,
        keys=None,
        properties=None,
        queues=None,
        flag=0,
        born_timestamps_ms=[1] * len(messages),
    )


def folder_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> str:
        raise AssertionError("left in the folder")

    monkeypatch.setattr(HandoffFolder, "leave", leave)


def raw(path: Path) -> socket.socket:
    """Connect to the door as a stranger would."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(30)
    connection.connect(door_name(path))
    return connection


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    with connection.makefile("rb") as file:
        (length,) = struct.unpack("<I", file.read(4))
        answer = file.read(length)
    return answer[0], answer[1:]


def test_appends_use_no_file(reader: Store, writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff_door, "_ANSWER_WAIT_S", 600)  # a sync may take long
    folder_is_not_used(monkeypatch)
    assert reader.append("t", b"1", tags="a", keys="k", properties={"p": "v"}).queue_offset == 0
    assert reader.append_many("t", [b"2", b"3"]).queue_offsets.tolist() == [1, 2]
    assert len(reader.append_many("t", [])) == 0
    assert bodies(writer) == bodies(reader) == [b"1", b"2", b"3"]
    (found,) = writer.find("t", "k")
    assert (found.tags, found.properties["p"]) == ("a", "v")
    with pytest.raises(errors.HandoffRejected, match="queue"):
        reader.append("t", b"x", queue=7)


def test_appends_come_behind_work_that_waits(reader: Store, writer: Store) -> None:
    for number in range(20):
        reader.hand_off("t", [b"%d" % (2 * number)])
        reader.append("t", b"%d" % (2 * number + 1))
    assert bodies(writer) == [b"%d" % number for number in range(40)]


def test_large_work_goes_by_the_folder(reader: Store, writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff_door, "REQUEST_BYTES_MAX", 1000)
    assert reader.append("t", b"x" * 1000).queue_offset == 0
    with monkeypatch.context() as patched:
        folder_is_not_used(patched)
        assert reader.append("t", b"x").queue_offset == 1


@pytest.mark.parametrize("appended", [True, False])
def test_exactly_once_where_no_answer_comes(
    reader: Store, writer: Store, appended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.append("t", b"before")
    real = writer._append_from_door

    def dies(requests: Sequence[bytes]) -> list[tuple[int, bytes]]:
        if appended:
            real(requests)
        raise ConnectionResetError("the door closes")

    monkeypatch.setattr(writer, "_append_from_door", dies)
    assert reader.append_many("t", [b"1", b"2"]).queue_offsets.tolist() == [1, 2]
    assert reader.append("t", b"after").queue_offset == 3  # there is no door any more
    assert bodies(writer) == [b"before", b"1", b"2", b"after"]


def test_work_that_came_by_the_folder_is_not_appended_by_the_door(path: Path, writer: Store) -> None:
    work = work_of(b"1")
    HandoffFolder(path).leave(replace(work, sought_from=0))
    writer.maintain()
    assert [status for status, _ in writer._append_from_door([encode_work(work)])] == [NOT_NOW]
    assert bodies(writer) == [b"1"]


def test_exactly_once_where_the_next_writer_looks(path: Path) -> None:
    """The door appended some, and its process died: the sender leaves all, and the next writer adds the rest."""
    work = work_of(b"1", b"2", b"3")
    with open_small(path) as store:
        store.append("t", b"before")
        begin = store.info().log_end
        first = replace(work, bodies=[b"1"], born_timestamps_ms=[1])
        assert [status for status, _ in store._append_from_door([encode_work(first)])] == [STORED]
        store.append("t", b"other")
    HandoffFolder(path).leave(replace(work, sought_from=begin))
    with open_small(path) as store:
        assert bodies(store) == [b"before", b"1", b"other", b"2", b"3"]


def test_requests_that_no_client_makes(path: Path, writer: Store) -> None:
    commit = CommitWork(work_id=new_work_id(), group="g", offsets=[("t", 0, 0)])
    with raw(path) as slow, raw(path) as other:
        request = framed(encode_work(work_of(b"slow")))
        slow.sendall(request[:-1])
        other.sendall(framed(b"nonsense"))
        assert answer_of(other)[0] == REJECTED
        other.sendall(framed(encode_work(commit)))
        assert answer_of(other)[0] == NOT_NOW
        other.sendall(framed(b""))
        assert answer_of(other)[0] == REJECTED
        other.sendall(struct.pack("<I", handoff_door.REQUEST_BYTES_MAX + 1))
        assert other.recv(1) == b""
        slow.sendall(request[-1:])
        assert answer_of(slow)[0] == STORED
        slow.sendall(framed(b"nonsense") * 2)
        assert slow.recv(1) == b""
        other_client = DoorClient(path)
        assert other_client.ask(encode_work(work_of(b"last"))) is not None
        other_client.forget()
    assert bodies(writer) == [b"slow", b"last"]


def test_connections_are_bounded(path: Path, writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff_door, "CONNECTIONS_MAX", 2)
    with raw(path) as first, raw(path) as second, raw(path) as third, open_small(path, mode="r") as reader:
        assert third.recv(1) == b""
        assert reader.append("t", b"by the folder").queue_offset == 0
        for connection in (first, second):
            connection.sendall(framed(encode_work(work_of(b"by the door"))))
            assert answer_of(connection)[0] == STORED


def test_connections_of_another_user_are_closed(path: Path, writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff_door, "_is_trusted", lambda _: False)
    with raw(path) as connection:
        assert connection.recv(1) == b""
    with open_small(path, mode="r") as reader:
        assert reader.append("t", b"by the folder").queue_offset == 0


def test_name_that_is_taken_leaves_the_folder(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_small(path):
        pass
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(door_name(path))
        with caplog.at_level("INFO"), open_small(path), open_small(path, mode="r") as reader:
            assert reader.append("t", b"by the folder").queue_offset == 0
    assert caplog.text.count("has no door") == 1


def test_door_is_made_once_its_name_is_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff_door, "_ANSWER_WAIT_S", 600)
    with open_small(path):
        pass
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(door_name(path))
        stack = ExitStack()
        writer = stack.enter_context(open_small(path))
    with stack, open_small(path, mode="r") as reader:
        assert writer._watcher is not None
        writer._watcher.stop()  # the test looks in its place
        writer._keep_door()
        folder_is_not_used(monkeypatch)
        assert reader.append("t", b"by the door").queue_offset == 0


def test_requests_that_fail_leave_the_door_open(reader: Store, writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(HandoffApplier, "_append", fails)
        assert [status for status, _ in writer._append_from_door([encode_work(work_of(b"x"))])] == [NOT_NOW]
        patched.setattr(HandoffApplier, "append_now", fails)
        assert [status for status, _ in writer._append_from_door([b"", b""])] == [NOT_NOW] * 2
    monkeypatch.setattr(handoff_door, "_ANSWER_WAIT_S", 600)
    folder_is_not_used(monkeypatch)
    assert reader.append("t", b"1").queue_offset == 0


def fails(*_: object) -> NoReturn:
    raise MemoryError


def test_copies_of_a_store_have_doors_of_their_own(path: Path, writer: Store, tmp_path: Path) -> None:
    writer.append("t", b"1")
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("wake"))
    with open_small(copy, mode="r") as reader:
        assert reader.append("t", b"2").queue_offset == 1  # nobody writes there
    assert bodies(writer) == [b"1"]


def test_idle_connections_to_a_writer_that_is_gone_are_passed_over(path: Path) -> None:
    with open_small(path):
        pass
    with open_small(path, mode="r") as reader:
        for number in range(3):
            with open_small(path):
                assert reader.append("t", b"x").queue_offset == number


# --- Answers that cannot be trusted, and ways that fail behind one


@pytest.mark.parametrize("payload", [b"", b"123", *(struct.pack("<q", place) for place in (0, -1, 1 << 40))])
def test_messages_that_another_program_says_it_stored(path: Path, payload: bytes) -> None:
    """In another network namespace the door's name is free beside the writer's."""
    with open_small(path, background=False) as writer, open_small(path, mode="r") as reader:
        writer.append("t", b"at offset 0")
        reader._client.door.ask = lambda _: (STORED, payload)  # type: ignore[union-attr, method-assign]
        with ThreadPoolExecutor(1) as pool:
            appended = pool.submit(reader.append, "t", b"mine")
            while not appended.done():
                writer.maintain()
        assert appended.result().queue_offset == 1
        assert bodies(writer) == [b"at offset 0", b"mine"]


def test_answers_without_a_status_are_no_answers(path: Path) -> None:
    with open_small(path):
        pass
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter, ThreadPoolExecutor(1) as pool:
        squatter.bind(door_name(path))
        squatter.listen()
        client = DoorClient(path)
        asked = pool.submit(client.ask, b"request")
        connection, _ = squatter.accept()
        with connection:
            connection.sendall(struct.pack("<I", 0))
            with pytest.raises(DoorBroken, match="without a status"):
                asked.result()


def test_view_that_has_ended_sends_nothing(reader: Store, writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    client = reader._client
    assert client is not None
    monkeypatch.setattr(client, "_refresh", ends)
    with pytest.raises(errors.StoreClosed):
        reader.append("t", b"1")
    assert writer.topics() == []


def ends() -> None:
    raise errors.StoreClosed("the view has ended")


@pytest.mark.parametrize("error", [errors.LimitReached("too much waits"), errors.StoreClosed("the view has ended")])
def test_error_behind_a_request_says_that_messages_may_be_stored(
    reader: Store, writer: Store, error: errors.Error, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writer._append_from_door

    def stores_and_dies(requests: Sequence[bytes]) -> list[tuple[int, bytes]]:
        real(requests)
        raise ConnectionResetError("the door closes")

    def refuses(*_: object) -> str:
        raise error

    monkeypatch.setattr(writer, "_append_from_door", stores_and_dies)
    monkeypatch.setattr(HandoffFolder, "leave", refuses)
    with pytest.raises(errors.StorageError, match=r"2 messages may be in .* or not.*CMQ_HANDOFF"):
        reader.append_many("t", [b"1", b"2"])
    assert bodies(writer) == [b"1", b"2"]
