"""Checks: reading by every bound, both ways; waiting for new messages; look-ups; messages outlive the store."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import cometmq
from cometmq import Message, Reader, Store, errors
from support.small_store import open_small


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        yield opened


def bodies(messages: Iterable[Message]) -> list[bytes]:
    return [bytes(message) for message in messages]


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_iteration_of_a_store_is_refused(store: Store) -> None:
    store.append("t", b"x", keys="k")
    reader = store.read("t")
    assert repr(reader) == "<Reader open; iterate over it>"
    assert len(list(reader)) == 1
    reader.close()
    assert repr(reader) == "<Reader closed; iterate over it>"
    assert repr(store.find("t", "k")) == "<KeySearch; iterate over it>"


# --- Bounds and order


def test_bounds_by_offset(store: Store) -> None:
    store.append_many("t", numbered(2000))
    assert bodies(store.read("t", start=5, end=8)) == [b"5", b"6", b"7"]
    assert bodies(store.read("t", start=1998)) == [b"1998", b"1999"]
    assert bodies(store.read("t", end=2)) == [b"0", b"1"]
    assert bodies(store.read("t", start=5, end=8, backwards=True)) == [b"7", b"6", b"5"]
    assert bodies(store.read("t", backwards=True)) == numbered(2000)[::-1]
    assert bodies(store.read("t", start=5000)) == []


def test_queues_and_topics_come_merged_in_order_of_storing(store: Store) -> None:
    store.create_topic("a", queues=3)
    for number in range(300):
        store.append(("a", "b", "c")[number % 3], b"%d" % number)
    assert bodies(store.read()) == numbered(300)
    assert bodies(store.read(["b", "a", "c"])) == numbered(300)
    assert bodies(store.read(["a", "c"])) == [b"%d" % number for number in range(300) if number % 3 != 1]
    assert bodies(store.read("a", queues=[1])) == [b"%d" % number for number in range(3, 300, 9)]
    assert bodies(store.read("a", queues=[0, 2], backwards=True)) == [
        b"%d" % number for number in reversed(range(0, 300, 3)) if number % 9 != 3
    ]


def test_tags(store: Store) -> None:
    # The hashes of AaAa and BBBB are equal: only the text tells them apart.
    store.append_many("t", numbered(400), tags=["AaAa", "BBBB", "x", None] * 100)
    assert bodies(store.read("t", tags="AaAa")) == [b"%d" % number for number in range(0, 400, 4)]
    assert bodies(store.read("t", tags="x || BBBB")) == [b"%d" % n for n in range(400) if n % 4 in (1, 2)]
    assert bodies(store.read("t", tags=" x ", backwards=True)) == [b"%d" % n for n in reversed(range(2, 400, 4))]
    for every in (None, "*", "", "x || *"):
        assert len(bodies(store.read("t", tags=every))) == 400
    assert bodies(store.read("t", tags="none")) == []
    assert bodies(store.read(tags="AaAa")) == [b"%d" % number for number in range(0, 400, 4)]


def test_bounds_by_time(store: Store) -> None:
    for number in range(5):
        store.append("t", b"%d" % number)
        time.sleep(0.003)  # store times are milliseconds: five different ones are wanted
    times = [message.store_timestamp_ms for message in store.read("t")]
    middle = datetime.fromtimestamp(times[2] / 1000, tz=timezone.utc)
    assert bodies(store.read("t", start_time=times[2])) == [b"2", b"3", b"4"]
    assert bodies(store.read("t", start_time=middle, end_time=times[4])) == [b"2", b"3"]
    assert bodies(store.read(start_time=middle, backwards=True)) == [b"4", b"3", b"2"]
    naive = middle.astimezone().replace(tzinfo=None)
    assert bodies(store.read("t", end_time=naive)) == [b"0", b"1"]
    assert store.offset_at("t", 0, times[3]) == 3
    assert store.offset_at("t", 0, times[4] + 1) == 5
    assert store.offset_at("t", 0, 0) == 0
    assert store.offset_at("t", 0, times[3], last=True) == 3
    assert store.offset_at("t", 0, middle - timedelta(days=1), last=True) == 0


def test_wrong_questions(store: Store) -> None:
    store.append("t", b"x")
    for question in ({"start": 1}, {"topic": ["t", "t2"], "end": 1}):
        with pytest.raises((errors.InvalidArgument, errors.TopicNotFound)):
            store.read(**question)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument):
        store.read("t", follow=True, backwards=True)
    with pytest.raises(errors.InvalidArgument):
        store.read([])
    with pytest.raises(errors.InvalidArgument):
        store.read("t", start=5, end=2)
    with pytest.raises(errors.InvalidArgument):
        store.read("t", follow=True, timeout_s=-1)
    for queues in ([5], [-1], [], [1 << 40]):
        with pytest.raises((errors.InvalidArgument, errors.TopicNotFound)):
            store.read("t", queues=queues)
        with pytest.raises((errors.InvalidArgument, errors.TopicNotFound)):
            store.follow("t", queues=queues)
    with pytest.raises(errors.InvalidArgument):
        store.read(queues=[0])
    for offset in (-1, 1 << 63):
        with pytest.raises(errors.InvalidArgument):
            store.read("t", start=offset)
    with pytest.raises(errors.InvalidArgument):
        store.get("t", 1 << 40, 0)
    with pytest.raises(errors.InvalidArgument):
        store.read("t", start_time=1 << 70)
    with pytest.raises(TypeError):
        store.read("t", start_time="yesterday")  # type: ignore[arg-type]
    with pytest.raises(errors.TopicNotFound) as caught:
        store.read("nowhere")
    assert caught.value.topic == "nowhere"


# --- Waiting


def test_follow_returns_new_messages(store: Store) -> None:
    store.append("t", b"old")
    with store.read("t", follow=True, timeout_s=20) as reader:
        assert bytes(next(reader)) == b"old"
        thread = threading.Thread(target=lambda: store.append("t", b"new"))
        thread.start()
        assert bytes(next(reader)) == b"new"
        thread.join()


def test_follow_stops_after_its_time_and_can_go_on(store: Store) -> None:
    store.append("t", b"1")
    reader = store.read("t", follow=True, timeout_s=0.05)
    began = time.monotonic()
    assert bodies(reader) == [b"1"]
    assert time.monotonic() - began >= 0.05
    store.append("t", b"2")
    assert bodies(reader) == [b"2"]
    assert not reader.ended


def test_follow_from_now_on(store: Store) -> None:
    store.create_topic("t", queues=2)
    store.append_many("t", numbered(10))
    one, everything = store.follow("t", timeout_s=0.0), store.follow(timeout_s=0.0)
    assert bodies(one) == bodies(everything) == []
    store.append_many("t", [b"a", b"b", b"c"])
    store.append("other", b"d")
    assert bodies(one) == [b"a", b"b", b"c"]
    assert bodies(everything) == [b"a", b"b", b"c", b"d"]


def test_a_topic_without_messages_is_waited_for(store: Store) -> None:
    store.create_topic("t", queues=2)
    assert bodies(store.read("t")) == []
    reader, late = store.read("t", follow=True, timeout_s=0.0), store.follow("t", timeout_s=0.0)
    assert bodies(reader) == []
    store.append_many("t", [b"a", b"b"])
    assert bodies(reader) == bodies(late) == [b"a", b"b"]


def test_a_bounded_follow_ends(store: Store) -> None:
    store.append_many("t", numbered(3))
    reader = store.read("t", end=5, follow=True)
    store.append_many("t", numbered(10, start=3))
    assert bodies(reader) == numbered(5)
    assert reader.ended


def test_fetch(store: Store) -> None:
    store.append_many("t", numbered(1200))
    reader = store.read("t", follow=True)
    sizes = []
    while messages := reader.fetch(500):
        sizes.append(len(messages))
    assert sizes == [500, 500, 200]
    began = time.monotonic()
    assert reader.fetch(timeout_ms=30) == []
    assert time.monotonic() - began >= 0.03


def test_signals_are_let_in_while_waiting(store: Store) -> None:
    store.append("t", b"x")

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        reader = store.follow("t")
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            next(reader)
        store.append("t", b"y")
        assert bytes(next(reader)) == b"y"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_one_thread_at_a_time_per_reader(store: Store) -> None:
    reader = store.follow()
    waiting = threading.Thread(target=lambda: reader.fetch(timeout_ms=20_000))
    waiting.start()
    deadline = time.monotonic() + 10
    refused = False
    while not refused and time.monotonic() < deadline:
        refused = is_refused(reader)
    assert refused, "two threads were inside one reader"
    store.append("t", b"x")
    waiting.join()


def is_refused(reader: Reader) -> bool:
    try:
        reader.fetch()
    except errors.StoreBusy:
        return True
    return False


# --- Look-ups


def test_get(store: Store) -> None:
    results = [store.append("t", body) for body in numbered(3)]
    assert bytes(store.get("t", 0, 1)) == b"1"
    assert bytes(store.get_by_id(results[2].message_id)) == b"2"
    assert bytes(store.get_by_id(results[2].message_id.lower())) == b"2"
    assert bytes(store.get_physical(results[1].physical_offset)) == b"1"
    for offset in (3, -1):
        with pytest.raises(errors.OffsetOutOfRange) as caught:
            store.get("t", 0, offset)
        assert caught.value.offset == (offset if offset >= 0 else None)
    with pytest.raises(errors.TopicNotFound):
        store.get("t", 1, 0)
    with pytest.raises(errors.InvalidArgument):
        store.get_by_id("no id")
    with pytest.raises(errors.CorruptRecord):
        store.get_physical(results[1].physical_offset + 1)
    with pytest.raises(errors.OffsetOutOfRange):
        store.get_physical(1 << 40)
    other_host = "0A000001" + results[0].message_id[8:]
    with pytest.raises(errors.NotFound, match="not here"):
        store.get_by_id(other_host)


def test_find(store: Store) -> None:
    for number in range(10):
        store.append("t", b"%d" % number, keys=["all", f"k{number}"], properties={"UNIQ_KEY": f"u{number}"})
    store.append("other", b"other", keys="all")
    assert bodies(store.find("t", "all")) == numbered(10)[::-1]
    assert bodies(store.find("t", "all", limit=2)) == [b"9", b"8"]
    assert bodies(store.find("t", "k3")) == [b"3"]
    assert bodies(store.find("t", "u4")) == [b"4"]
    found = store.find_unique("t", "u5")
    assert found is not None
    assert bytes(found) == b"5"
    assert store.find_unique("t", "k5") is None
    assert list(store.find("t", "none")) == []
    assert list(store.find("t", "all", end_time=1)) == []
    with pytest.raises(errors.TopicNotFound):
        store.find("nowhere", "all")
    with pytest.raises(errors.InvalidArgument):
        store.find("t", "all", limit=0)


def test_find_gives_every_message_of_a_key_lazily(store: Store) -> None:
    count = 5000  # over two index files; one step takes at most 512
    store.append_many("t", numbered(count), keys=["all other"] * count)
    found = store.find("t", "all")
    assert bytes(next(found)) == b"4999"
    store.append("t", b"later", keys="all")
    assert bodies(found) == numbered(count - 1)[::-1]
    assert list(found) == []
    assert bytes(next(store.find("t", "all"))) == b"later"
    assert bodies(store.find("t", "all", limit=1000)) == [b"later", *numbered(count)[: count - 1000 : -1]]


def test_a_search_ends_with_its_store(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", numbered(100), keys=["k"] * 100)
        found = store.find("t", "k")
        first = next(found)
    with pytest.raises(errors.StoreClosed):
        list(found)
    assert bytes(first) == b"99"


def test_find_by_tag(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", numbered(9), tags=["AaAa", "BBBB", ""] * 3, queue=0)
        store.append("u", b"other topic", tags="AaAa")
        assert [bytes(found) for found in store.find("t", tag="AaAa")] == [b"6", b"3", b"0"], "equal hash codes"
        assert [bytes(found) for found in store.find("t", tag="BBBB", limit=2)] == [b"7", b"4"]
        assert list(store.find("t", tag="AaAa || BBBB")) == [], "one tag, not an expression"
        last_ms = store.get("t", 0, 8).store_timestamp_ms
        assert len(list(store.find("t", tag="AaAa", start_time=0, end_time=last_ms))) == 3, "both ends belong to it"
        assert list(store.find("t", tag="AaAa", start_time=last_ms + 1)) == []


def test_a_store_without_an_index_finds_tags(tmp_path: Path) -> None:
    with cometmq.open(tmp_path / "store", settings={"messageIndexEnable": False}) as store:
        store.append("t", b"x", tags="a")
        assert [bytes(found) for found in store.find("t", tag="a")] == [b"x"]


def test_a_store_without_an_index_says_so(tmp_path: Path) -> None:
    with cometmq.open(tmp_path / "store", settings={"messageIndexEnable": False}) as store:
        store.append("t", b"x", keys="k")
        with pytest.raises(errors.SettingConflict, match="messageIndexEnable"):
            store.find("t", "k")


# --- Lifetimes


def test_messages_outlive_the_store(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", [b"%d" % number * 1000 for number in range(2000)], tags="tag")
        messages = list(store.read("t"))
        views = [message.body for message in messages[::100]]
        again = store.get("t", 0, 7)
    for path in sorted(store.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    del store
    gc.collect()
    assert [bytes(message) for message in messages] == [b"%d" % number * 1000 for number in range(2000)]
    assert all(message.tags == "tag" for message in messages)
    del messages
    gc.collect()
    assert [bytes(view) for view in views] == [b"%d" % number * 1000 for number in range(0, 2000, 100)]
    assert bytes(again) == b"7" * 1000


def test_views_work_in_other_threads(store: Store) -> None:
    store.append_many("t", numbered(1000))
    messages = list(store.read("t"))
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append([bytes(m.body) for m in messages])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [numbered(1000)] * 4


def test_bodies_cannot_be_changed(store: Store) -> None:
    store.append("t", b"history")
    with pytest.raises(TypeError):
        store.get("t", 0, 0).body[0] = 0


def test_messages_are_made_by_stores_only() -> None:
    with pytest.raises(TypeError, match="come from a store"):
        _ = Message().topic
    with pytest.raises(TypeError, match="come from a store"):
        bytes(Message())


def test_readers_do_not_stop_the_writer(store: Store) -> None:
    """Several readers follow while one thread appends; each sees every message once, in order."""
    total = 20_000
    store.create_topic("t")
    seen: list[list[int]] = [[] for _ in range(3)]

    def follow(numbers: list[int]) -> None:
        for message in store.read("t", follow=True, timeout_s=30):
            numbers.append(int(bytes(message)))
            if len(numbers) == total:
                return

    threads = [threading.Thread(target=follow, args=(numbers,)) for numbers in seen]
    for thread in threads:
        thread.start()
    for start in range(0, total, 500):
        store.append_many("t", numbered(500, start=start))
    for thread in threads:
        thread.join()
    assert seen == [list(range(total))] * 3


# --- Damage


def test_a_damaged_record_is_reported_and_passed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        places = [store.append("t", body).physical_offset for body in numbered(10)]
    log = path / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(places[4])
        file.write(b"\xff" * 8)
    with open_small(path, mode="r") as store:
        reader = store.read("t")
        assert [bytes(next(reader)) for _ in range(4)] == numbered(4)
        with pytest.raises(errors.CorruptRecord) as caught:
            next(reader)
        assert caught.value.offset == places[4]
        assert bodies(reader) == numbered(5, start=5)


@pytest.mark.parametrize("by_iteration", [False, True])
def test_fetch_returns_messages_before_the_damage(tmp_path: Path, by_iteration: bool) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        places = [store.append("t", body).physical_offset for body in numbered(10)]
    log = path / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(places[4])
        file.write(b"\xff" * 8)
    with open_small(path, mode="r") as store:
        reader = Reader(store.handle, topics=["t"], starts={("t", 0): 0})
        assert bodies(reader.fetch(10)) == numbered(4)
        assert reader.positions() == {("t", 0): 4}  # not past damage that was not reported
        with pytest.raises(errors.CorruptRecord) as caught:
            next(reader) if by_iteration else reader.fetch(10)
        assert caught.value.offset == places[4]
        assert bodies(reader.fetch(10)) == numbered(5, start=5)
        assert reader.fetch(10) == []
        assert reader.positions() == {("t", 0): 10}
