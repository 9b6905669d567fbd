"""Checks: a topic is in topics.json before its first message; changes survive a restart; broker's files are kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import Store, errors
from cometmq.store_config.fastjson import loads
from cometmq.store_config.topics import Topics
from support.small_store import open_small


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        yield opened


def entries(store: Store) -> dict[str, tuple[int, int, int]]:
    topics = Topics(store.path / "config")
    topics.load()
    return {one.topic_name: (one.read_queue_nums, one.write_queue_nums, int(one.perm)) for one in topics.all()}


def test_an_append_makes_its_topic(store: Store) -> None:
    assert not (store.path / "config" / "topics.json").exists()
    store.append("t", b"x")
    assert entries(store) == {"t": (1, 1, 6)}
    before = (store.path / "config" / "topics.json").stat().st_mtime_ns
    store.append("t", b"x")
    assert (store.path / "config" / "topics.json").stat().st_mtime_ns == before


def test_a_topic_that_cannot_be_written_down_gets_no_message(store: Store) -> None:
    store.append("t", b"x")
    config = store.path / "config"
    config.rename(store.path / "away")
    config.write_text("in the way")
    with pytest.raises(errors.StorageError):
        store.append("new", b"x")
    assert [message.topic for message in store.read()] == ["t"]
    config.unlink()
    (store.path / "away").rename(config)
    assert store.append("new", b"x").queue_offset == 0
    assert set(entries(store)) == {"t", "new"}


def test_create(store: Store) -> None:
    info = store.create_topic("t", queues=8, perm=6, attributes={"message.type": "FIFO"})
    assert (info.name, info.write_queues, info.read_queues, info.perm) == ("t", 8, 8, 6)
    assert info.attributes == {"message.type": "FIFO"}
    assert (info.queues, info.messages, info.is_configured, info.is_system) == ((), 0, True, False)
    assert store.queue("t", 7).messages == 0
    with pytest.raises(errors.InvalidArgument, match="exist_ok"):
        store.create_topic("t")
    assert store.create_topic("t", queues=2, exist_ok=True).write_queues == 8
    with pytest.raises(errors.TopicNotFound):
        store.queue("t", 8)
    assert store.topics() == ["t"]


@pytest.mark.parametrize("name", ["a/b", "", "TBW102", "rmq_sys_x", "%LMQ%x", "x" * 200])
def test_names_that_cannot_be_made(store: Store, name: str) -> None:
    with pytest.raises(errors.InvalidTopic):
        store.create_topic(name)


@pytest.mark.parametrize("wrong", [{"queues": 0}, {"queues": 1 << 20}, {"attributes": {"colour": "red"}}])
def test_wrong_topics(store: Store, wrong: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        store.create_topic("t", **wrong)  # type: ignore[arg-type]
    assert store.topics() == []


def test_more_queues(store: Store) -> None:
    store.append("t", b"0")
    assert store.set_topic_queues("t", 3).write_queues == 3
    assert [store.append("t", b"x").queue_id for _ in range(3)] == [0, 1, 2]
    assert store.set_topic_queues("t", 1).write_queues == 1
    assert store.append("t", b"x").queue_id == 0
    assert len(list(store.read("t"))) == 5
    with pytest.raises(errors.TopicNotFound):
        store.set_topic_queues("u", 2)


def test_a_topic_without_write_permission(store: Store) -> None:
    store.create_topic("t", perm=4)
    with pytest.raises(errors.InvalidArgument, match="perm is 4"):
        store.append("t", b"x")


def test_delete(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"x", keys="k")
        store.append("u", b"y")
        store.set_progress("g", "t", 0, 1)
        store.delete_topic("t")
        assert store.topics() == ["u"]
        assert store.progress() == []
        for call in (lambda: store.read("t"), lambda: store.delete_topic("t"), lambda: store.topic("t")):
            with pytest.raises(errors.TopicNotFound):
                call()
    with open_small(tmp_path / "store") as store:
        assert store.topics() == ["u"]
        assert store.append("t", b"again").queue_offset == 0
        assert [bytes(message) for message in store.read("t")] == [b"again"]


@pytest.mark.parametrize("backwards", [False, True])
def test_reading_everything_leaves_deleted_topics_out(tmp_path: Path, backwards: bool) -> None:
    def everything(store: Store) -> list[bytes]:
        found = [bytes(message) for message in store.read(backwards=backwards)]
        return found[::-1] if backwards else found

    with open_small(tmp_path / "store") as store, open_small(tmp_path / "store", mode="r") as reader:
        first = store.append("t", b"old", tags="a", keys="k")
        store.append("u", b"kept")
        new = store.follow(timeout_s=0)
        store.delete_topic("t")
        assert everything(store) == [b"kept"]
        assert list(store.read(tags="a")) == []
        store.append("t", b"anew", keys="k")
        assert everything(store) == everything(reader) == [b"kept", b"anew"]
        assert [bytes(message) for message in new] == [b"anew"]
        assert [bytes(message) for message in store.find("t", "k")] == [b"anew"]
        assert [bytes(message) for message in reader.find("t", "k")] == [b"anew"]
        assert bytes(store.get_by_id(first.message_id)) == b"old"  # until the log expires
    with open_small(tmp_path / "store") as store:
        assert everything(store) == [b"kept", b"anew"]
        store.delete_topic("t")
        store.delete_topic("u")
        assert everything(store) == []


def test_batch_topics_survive_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        with open_small(tmp_path / "store") as store:
            assert store.create_topic("t", batch=True, exist_ok=True).is_batch
            store.append("t", b"%d" % number)
            assert [bytes(message) for message in store.read("t")] == [b"%d" % n for n in range(number + 1)]
            assert store.queue("t").is_batch
    assert (tmp_path / "store" / "batchconsumequeue" / "t" / "0").is_dir()
    assert not (tmp_path / "store" / "consumequeue" / "t").exists()


def test_foreign_entries_are_kept(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    config.mkdir()
    entry = {"topicName": "theirs", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "newFeature": {"a": 1}}
    content = {"dataVersion": {"counter": 3}, "topicConfigTable": {"theirs": entry}, "later": True}
    (config / "topics.json").write_text(json.dumps(content))
    with open_small(tmp_path / "store") as store:
        assert [store.append("theirs", b"x").queue_id for _ in range(5)] == [0, 1, 2, 3, 0]
        store.append("ours", b"x")
    written = loads((config / "topics.json").read_bytes())
    assert isinstance(written, dict)
    assert written["later"] is True
    assert written["topicConfigTable"]["theirs"]["newFeature"] == {"a": 1}  # type: ignore[call-overload,index]
    assert set(written["topicConfigTable"]) == {"theirs", "ours"}  # type: ignore[arg-type]


def test_a_damaged_file_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("a", b"x")
        store.append("b", b"x")
    (tmp_path / "store" / "config" / "topics.json").write_text("{broken")
    with pytest.warns(RuntimeWarning, match=r"topics\.json"):
        store = open_small(tmp_path / "store")
    with store:
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert "topics.json" in record.getMessage()
        assert "its .bak was used; the next write keeps the damaged file as topics.json.broken" in record.getMessage()
        assert store.topics() == ["a", "b"]
        assert store.append("b", b"y").queue_offset == 1
        assert store.append("c", b"y").queue_offset == 0


def test_a_reader_sees_topics_come(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as writer:
        writer.append("a", b"x")
        with open_small(tmp_path / "store", mode="r") as reader:
            assert reader.topics() == ["a"]
            writer.create_topic("b", queues=2)
            assert reader.topic("b").write_queues == 2
            writer.append_many("c", [b"1", b"2"])
            assert [bytes(message) for message in reader.read("c")] == [b"1", b"2"]
            assert reader.topics() == ["a", "b", "c"]


def test_many_threads_make_the_same_topics(store: Store) -> None:
    def append() -> None:
        for number in range(20):
            store.append(f"t{number}", b"x")

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.max_offset(f"t{number}") for number in range(20)] == [4] * 20
    assert len(entries(store)) == 20
