"""Checks: a sender sets no property that the store, the broker or the timers write, by whatever way the message comes.

The checks cover the effects that the property would have: a store that cannot be opened, others' messages cut off at a
recovery, others' timers deleted, a handle that acknowledges another message, handed-off messages taken for appended.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import cometmq
from cometmq import errors
from cometmq._engine import encode_properties
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store.handoff import handoff_mark
from cometmq.store.handoff_files import HANDOFF_PROPERTY, HandoffFolder, MessagesWork, new_work_id
from hostile.test_inner_batches import element, make_topic
from hostile.test_staged_files import content_of, leave
from hostile.test_system_topics import make, send
from support.small_store import SMALL, open_small

LIGHT = SMALL | {"enableLmq": True, "enableMultiDispatch": True}
MANY = [b"before %d" % number for number in range(5)] + [b"after %d" % number for number in range(5)]

# Each would harm the topic "victim", or make the store one that cannot be opened.
FORGED: Mapping[str, Mapping[str, str]] = {
    "another queue": {"INNER_MULTI_DISPATCH": "victim", "INNER_MULTI_QUEUE_OFFSET": "100000000000000000"},
    "no name": {"INNER_MULTI_DISPATCH": "..", "INNER_MULTI_QUEUE_OFFSET": "0"},
    "light queue": {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "100000000000000000"},
    "light path": {"INNER_MULTI_DISPATCH": "%LMQ%..", "INNER_MULTI_QUEUE_OFFSET": "7,8"},
    "torn": {"__CRC32#": "0000000000"},
    "torn, twice": {"A": "b\x02__CRC32#\x010000000000", "__CRC32#": "1"},
    "handle": {"POP_CK": "0 1700000000000 60000 0 0 broker-a 0 7"},
}
STORED_BY_NOBODY = {"INNER_MULTI_QUEUE_OFFSET", "__CRC32#", "POP_CK"}


def encoded(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


# --- The ways in


def by_append_many(store: cometmq.Store, path: Path, properties: bytes) -> None:
    store._handle.append_many("forged", [b"x", b"y"], properties=properties, wait=True)


def by_each_properties(store: cometmq.Store, path: Path, properties: bytes) -> None:
    store._handle.append_many("forged", [b"x", b"y"], properties=[b"", properties], wait=True)


def by_append(store: cometmq.Store, path: Path, properties: bytes) -> None:
    store._handle.append("forged", b"x", properties=properties)


def by_hand_off(store: cometmq.Store, path: Path, properties: bytes) -> None:
    HandoffFolder(path).leave(
        MessagesWork(
            work_id=new_work_id(),
            topic="forged",
            bodies=[b"x"],
            tags=None,
            keys=None,
            properties=[properties],
            queues=None,
            flag=0,
            born_timestamps_ms=[5],
        )
    )
    assert store.apply_handoffs() == 1


def by_staged_file(store: cometmq.Store, path: Path, properties: bytes) -> None:
    rows = pa.record_batch(
        {"body": pa.array([b"x"] * 3, pa.binary()), "properties": pa.array([properties] * 3, pa.binary())}
    )
    leave(path, content_of(rows), topic="forged")
    assert store.apply_handoffs() == 1


DOORS: tuple[Callable[[cometmq.Store, Path, bytes], None], ...] = (
    by_append,
    by_append_many,
    by_each_properties,
    by_hand_off,
    by_staged_file,
)


def killed(path: Path, to: Path) -> Path:
    """Copy a store as its writer's death would leave it."""
    shutil.copytree(path, to, ignore=shutil.ignore_patterns("wake"))
    return to


def assert_unharmed(path: Path, settings: Mapping[str, object]) -> None:
    with cometmq.open(path, settings=settings, flush="async") as store:
        assert [bytes(message.body) for message in store.read("victim")] == MANY
        assert store.append("victim", b"more", queue=0).queue_offset == len(MANY)


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
@pytest.mark.parametrize("settings", [SMALL, LIGHT], ids=["usual", "light queues"])
def test_embedded_doors(tmp_path: Path, forged: Mapping[str, str], settings: Mapping[str, object]) -> None:
    path = tmp_path / "store"
    with cometmq.open(path, settings=settings, flush="async", background=False) as store:
        store.create_topic("forged", queues=1)
        for body in MANY[:5]:
            store.append("victim", body, queue=0)
        for door in DOORS:
            door(store, path, encoded(forged))
        for body in MANY[5:]:
            store.append("victim", body, queue=0)
        store.flush()
        for message in store.read("forged"):
            own = set(message.properties) & STORED_BY_NOBODY
            assert not own or (own == {"INNER_MULTI_QUEUE_OFFSET"} and settings is LIGHT), message.properties
            assert message.properties.get("INNER_MULTI_QUEUE_OFFSET", "0") in "01234567", "the store's own"
        dead = killed(path, tmp_path / "dead")
        other = killed(path, tmp_path / "other")
    assert_unharmed(path, settings)
    assert_unharmed(dead, LIGHT)
    assert_unharmed(other, SMALL)


def test_doors_of_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with make(path) as broker, Channel(broker.address) as channel:
        for body in MANY[:5]:
            assert send(channel, "victim", body).code == ResponseCode.SUCCESS
        for number, forged in enumerate(FORGED.values()):
            text = encoded(forged).decode()
            assert send(channel, "forged", properties=text).code == ResponseCode.SUCCESS
            batch = element(b"one", encoded(forged)) + element(b"two")
            for properties in ("", text):
                done = send(channel, "forged", batch, properties=properties, code=RequestCode.SEND_BATCH_MESSAGE)
                assert done.code == ResponseCode.SUCCESS, done
            send_back(channel, broker.store.get("forged", 0, 5 * number).physical_offset)
        for body in MANY[5:]:
            assert send(channel, "victim", body).code == ResponseCode.SUCCESS
        broker.store.flush()
        stored = [message for topic in ("forged", "SCHEDULE_TOPIC_XXXX") for message in broker.store.read(topic)]
        assert len(stored) == 6 * len(FORGED)
        for message in stored:
            assert not set(message.properties) & STORED_BY_NOBODY
        dead = killed(path, tmp_path / "dead")
    assert_unharmed(dead, {"mappedFileSizeCommitLog": 1 << 20, "enableLmq": True, "enableMultiDispatch": True})


def send_back(channel: Channel, physical_offset: int) -> None:
    fields = {
        "group": "g",
        "offset": str(physical_offset),
        "delayLevel": "18",
        "originMsgId": "",
        "originTopic": "forged",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    answer = channel.invoke(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields), timeout_ms=10_000)
    assert answer.code == ResponseCode.SUCCESS, answer


def test_forged_offsets_of_an_older_log_are_left_out(tmp_path: Path) -> None:
    """An older writer, or Java's with light queues switched off, stored them as they were sent."""
    path = tmp_path / "store"
    with open_small(path) as store:
        for body in MANY[:5]:
            store.append("victim", body, queue=0)
        for forged in FORGED.values():
            if "INNER_MULTI_DISPATCH" in forged:
                named = {name.replace("QUEUE_OFFSET", "QUEUE_OFFSEX"): value for name, value in forged.items()}
                store.append("forged", b"x", properties=named, queue=0)
        for body in MANY[5:]:
            store.append("victim", body, queue=0)
        store.flush()
        dead = killed(path, tmp_path / "dead")
    log = dead / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"QUEUE_OFFSEX", b"QUEUE_OFFSET"))
    with cometmq.open(dead, mode="r", settings=LIGHT) as store:
        assert [bytes(message.body) for message in store.read("victim")] == MANY
    assert_unharmed(dead, LIGHT)


# --- Light queues


def test_senders_make_a_bounded_number_of_light_queues(tmp_path: Path) -> None:
    with cometmq.open(tmp_path, settings=LIGHT | {"maxLmqConsumeQueueNum": 3}, flush="async") as store:
        for names in ("%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%c"):
            store.append("t", b"x", properties={"INNER_MULTI_DISPATCH": names})
        with pytest.raises(errors.LimitReached, match="maxLmqConsumeQueueNum"):
            store.append("t", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%b,%LMQ%d"})
        store.append("t", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%b"})
        store.append("t", b"plain")
        assert len(list(store.read("t"))) == 5
        assert len(list(store.read("%LMQ%b"))) == 2


# --- Inner batches


def test_a_handle_inside_a_batch_is_dropped(tmp_path: Path) -> None:
    handle = encoded(FORGED["handle"])
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        make_topic(channel)
        batch = element(b"one", b"TAGS\x01t\x02" + handle + b"A\x01b\x02") + element(b"two") + element(b"", handle)
        done = send(channel, "batches", batch, code=RequestCode.SEND_BATCH_MESSAGE)
        assert done.code == ResponseCode.SUCCESS, done
        stored = list(broker.store.read("batches"))
        assert [(bytes(one.body), one.tags, "POP_CK" in one.properties) for one in stored] == [
            (b"one", "t", False),
            (b"two", None, False),
            (b"", None, False),
        ]
        assert stored[0].properties["A"] == "b"
        whole = send(channel, "batches", batch, sys_flag=0x80, properties="INNER_NUM\x013\x02")
        assert whole.code == ResponseCode.MESSAGE_ILLEGAL
        assert "POP_CK" in (whole.remark or "")


# --- Timers


def test_a_timer_of_another_topic_is_not_deleted(tmp_path: Path) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        due = time.time_ns() // 1_000_000 + 1_500
        timer = send(channel, "victim", b"timer", properties=f"UNIQ_KEY\x01U1\x02TIMER_DELIVER_MS\x01{due}\x02")
        assert timer.code == ResponseCode.SUCCESS
        for key in (
            "victim+U1",
            "U1",
            "rmq_sys_REVIVE_LOG_DefaultCluster+U1",
            "orders",
            "orders-U1",
            "order+U1",
            "orders+" + "U" * 1024,
        ):
            forged = f"TIMER_DELIVER_MS\x01{due}\x02TIMER_DEL_UNIQKEY\x01{key}\x02"
            answer = send(channel, "orders", properties=forged)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer
            assert "of its own topic only" in (answer.remark or "")
            # Without a time it deletes nothing.
            assert send(channel, "orders", properties=f"TIMER_DEL_UNIQKEY\x01{key}\x02").code == ResponseCode.SUCCESS
        assert wait_for_first(broker.store, "victim") == b"timer"


def test_a_timer_of_the_own_topic_is_deleted(tmp_path: Path) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        due = time.time_ns() // 1_000_000 + 1_500
        at = f"TIMER_DELIVER_MS\x01{due}\x02"
        for body, more in (
            (b"deleted", "UNIQ_KEY\x01U1\x02"),
            (b"", "TIMER_DEL_UNIQKEY\x01orders+U1\x02"),
            (b"kept", ""),
        ):
            assert send(channel, "orders", body, properties=at + more).code == ResponseCode.SUCCESS
        assert wait_for_first(broker.store, "orders") == b"kept"


def wait_for_first(store: cometmq.Store, topic: str) -> bytes:
    with store.read(topic, follow=True) as reader:
        return bytes(next(iter(reader)).body)


# --- Hand-off


def test_a_clients_mark_counts_for_nothing(tmp_path: Path) -> None:
    """A writer that comes after a dead one counts the marks in the log: a message with one is not appended again."""
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        assert send(channel, "forged", properties=f"{HANDOFF_PROPERTY}\x01w1:0\x02").code == ResponseCode.SUCCESS
        (message,) = broker.store.read("forged")
        assert handoff_mark(message) is None
        broker.store.append("forged", b"forwarded", properties={HANDOFF_PROPERTY: "w1:0"})
        broker.store.handle.append_many("forged", [b"own"], properties=encode_properties({HANDOFF_PROPERTY: "w1:0"}))
        assert [handoff_mark(one) for one in broker.store.read("forged")] == [None, None, ("w1", 0)]
        # Handed-off rows may be copies of messages that came over the wire.
        copied = encode_properties({"MSG_REGION": "r", "CLUSTER": "c", HANDOFF_PROPERTY: "w2:5"})
        broker.store.handle.append_many("copies", [b"own"], properties=copied)
        assert [handoff_mark(one) for one in broker.store.read("copies")] == [("w2", 5)]
