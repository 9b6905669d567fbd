"""The compiled data plane through its adapter: tables, progress, delay levels, storing, life."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

import cometmq
from cometmq import errors
from cometmq._engine import BrokerPlane, NetServer, decode_messages
from cometmq.broker.native_plane import NativePlane
from cometmq.broker.plane import OffsetChange, OutgoingMessage
from cometmq.broker.plane_options import PlaneOptions
from cometmq.remoting.bodies.heartbeat import ConsumeType, MessageModel, SubscriptionData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store_config.order_info import OrderedBatch, OrderedQueue
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.topic_config import Perm, TopicConfig

OPTIONS = PlaneOptions(cluster="C", broker_ip="127.0.0.1", store_address=b"\x7f\x00\x00\x01", store_port=10911)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[cometmq.Store]:
    with cometmq.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def plane(store: cometmq.Store) -> Iterator[NativePlane]:
    engine = BrokerPlane(store.handle, OPTIONS)
    made = NativePlane(engine, waits_for_disk=False)
    yield made
    made.close()


def message(**changed: object) -> OutgoingMessage:
    values: dict[str, object] = {
        "topic": "T",
        "queue_id": 2,
        "body": b"again",
        "properties": {"TAGS": "a", "KEYS": "k", "UNIQ_KEY": "u"},
        "flag": 7,
        "sys_flag": 0,
        "born_timestamp_ms": 1_700_000_000_000,
        "born_host": ("10.1.2.3", 4567),
        "reconsume_times": 3,
    }
    return OutgoingMessage(**(values | changed))  # type: ignore[arg-type]


def test_put_stores_a_copy(store: cometmq.Store, plane: NativePlane) -> None:
    place = plane.put(message())
    assert (place.queue_offset, place.message_id[:16]) == (0, "7F00000100002A9F")
    (found,) = store.read("T")
    assert (bytes(found.body), found.tags, found.keys, found.queue_id) == (b"again", "a", ("k",), 2)
    assert (found.flag, found.reconsume_times, found.born_timestamp_ms) == (7, 3, 1_700_000_000_000)
    assert found.born_host == ("10.1.2.3", 4567)
    assert found.physical_offset == place.physical_offset


def test_put_parks_delayed_messages(store: cometmq.Store, plane: NativePlane) -> None:
    plane.put(message(properties={"DELAY": "3"}))
    (parked,) = store.read("SCHEDULE_TOPIC_XXXX")
    assert parked.queue_id == 2
    assert parked.properties["REAL_TOPIC"] == "T"
    assert parked.properties["REAL_QID"] == "2"


def test_put_refuses_a_topic_that_no_directory_can_have(plane: NativePlane) -> None:
    with pytest.raises(errors.InvalidTopic):
        plane.put(message(topic="a/b"))


def test_progress_for_an_address_is_counted_at_a_time(plane: NativePlane) -> None:
    """Without one the address's share would begin again with its next request: the engine asserts it."""
    address = ip_address("10.0.0.1").packed
    plane.commit_offset("g", "T", 0, 2, address)
    plane.reset_offset("h", "T", 0, 1, address)
    assert (plane.query_offset("g", "T", 0), plane.query_offset("h", "T", 0)) == (2, 1)


def test_offset_changes_are_returned_in_order(plane: NativePlane) -> None:
    assert plane.query_offset("g", "T", 0) is None
    plane.commit_offset("g", "T", 0, 5)
    plane.commit_offset("g", "T", 1, 6)
    plane.commit_offset("h", "T", 0, 1)
    assert plane.query_offset("g", "T", 1) == 6
    assert set(plane.take_offset_changes()) == {
        OffsetChange("g", "T", 0, 5),
        OffsetChange("g", "T", 1, 6),
        OffsetChange("h", "T", 0, 1),
    }
    assert plane.take_offset_changes() == []
    plane.remove_offsets(group="g")
    assert plane.query_offset("g", "T", 0) is None
    removed = [(change.group, change.queue_id, change.offset) for change in plane.take_offset_changes()]
    assert removed == [("g", -1, -1)], "the twin in memory says the same"


def test_a_reset_stands_until_a_pull_takes_it(plane: NativePlane) -> None:
    plane.commit_offset("g", "T", 0, 5)
    plane.reset_offset("g", "T", 0, 2)
    plane.commit_offset("g", "T", 0, 9)
    assert plane.query_offset("g", "T", 0) == 2


def test_thousands_of_changes_come_all(plane: NativePlane) -> None:
    for number in range(3000):
        plane.commit_offset(f"group-{number}", "T", 0, number)
    assert {(change.group, change.offset) for change in plane.take_offset_changes()} == {
        (f"group-{number}", number) for number in range(3000)
    }


class Asked:
    """The plane's loops behind a socket."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def pull(self, topic: str, *, group: str = "g", version: int = 1) -> tuple[int, list[bytes]]:
        """Pull without a subscription of its own: the group's counts."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "0",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": str(version),
        }
        answer = self._channel.invoke(Command(code=RequestCode.PULL_MESSAGE, fields=fields), timeout_ms=10_000)
        found = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
        return answer.code, [bytes(each.body) for each in found]


@pytest.fixture
def asked(plane: NativePlane) -> Iterator[Asked]:
    server = NetServer(["127.0.0.1:0"], handler=plane.engine)
    server.start()
    with Channel(f"127.0.0.1:{server.ports()[0]}") as channel:
        yield Asked(channel)
    server.close()


def test_loops_serve_by_the_tables(store: cometmq.Store, plane: NativePlane, asked: Asked) -> None:
    """Each entry of the tables decides what a pull gets, and its removal undoes that."""
    for topic, tag in (("T", "a"), ("T", "b"), ("T", "c"), ("U", "x"), ("V", "a")):
        store.append(topic, tag.encode(), queue=0, tags=tag)
    plane.put_group(SubscriptionGroupConfig(group_name="g"))
    for topic in ("T", "U", "V"):
        plane.put_topic(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
    assert asked.pull("T")[0] == ResponseCode.SUBSCRIPTION_NOT_EXIST
    plane.put_consumer(
        "g",
        MessageModel.CLUSTERING,
        ConsumeType.CONSUME_PASSIVELY,
        [
            SubscriptionData(topic="T", sub_string="a || b", sub_version=3),
            SubscriptionData(topic="U", sub_string="*", sub_version=3),
        ],
        {"U"},
        {},
        end_holds=True,
    )
    assert asked.pull("T", version=3) == (ResponseCode.SUCCESS, [b"a", b"b"])
    assert asked.pull("T", version=4)[0] == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert asked.pull("U")[0] == ResponseCode.NO_PERMISSION, "the group may not read it"
    assert asked.pull("V")[0] == ResponseCode.SUBSCRIPTION_NOT_EXIST
    plane.put_topic(TopicConfig(topic_name="T", perm=Perm.WRITE))
    assert asked.pull("T")[0] == ResponseCode.NO_PERMISSION
    plane.put_topic(TopicConfig(topic_name="T"))
    assert asked.pull("T")[0] == ResponseCode.SUCCESS
    plane.set_broker_perm(Perm.WRITE)
    assert asked.pull("T")[0] == ResponseCode.NO_PERMISSION
    plane.set_broker_perm(Perm.READ | Perm.WRITE)
    plane.remove_consumer("g")
    assert asked.pull("T")[0] == ResponseCode.SUBSCRIPTION_NOT_EXIST
    plane.put_group(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    assert asked.pull("T")[0] == ResponseCode.NO_PERMISSION
    plane.put_group(SubscriptionGroupConfig(group_name="g"))
    plane.remove_topic("V")
    assert asked.pull("V")[0] == ResponseCode.TOPIC_NOT_EXIST


def test_an_expression_that_is_none_is_refused(plane: NativePlane) -> None:
    with pytest.raises(errors.InvalidArgument):
        plane.put_consumer(
            "g",
            MessageModel.CLUSTERING,
            ConsumeType.CONSUME_PASSIVELY,
            [SubscriptionData(topic="T", sub_string="||", sub_version=1)],
            (),
            {},
            end_holds=False,
        )


def test_delay_progress_is_kept_by_level(store: cometmq.Store, plane: NativePlane) -> None:
    plane.set_delay_progress(3, 0)
    plane.put(message(properties={"DELAY": "3"}))
    plane.start_delay()
    plane.stop_delay()
    mark = plane.delay_mark()
    assert mark.offsets == {3: 0}
    assert plane.delay_progress() == {3: 0}
    assert mark.log_end >= 0
    assert plane.delay_version() == 0
    with pytest.raises(errors.InvalidArgument):
        plane.set_delay_progress(99, 0)


def test_counters_have_names(plane: NativePlane) -> None:
    assert plane.counters()["messages_in"] == 0
    assert plane.traffic() == {}


def test_close_waits_for_its_server(store: cometmq.Store) -> None:
    engine = BrokerPlane(store.handle, OPTIONS)
    server = NetServer(["127.0.0.1:0"], handler=engine)
    with pytest.raises(RuntimeError, match="in use"):
        engine.close()
    server.close()
    engine.close()
    engine.close()
    with pytest.raises(errors.StoreClosed):
        engine.counters()


def test_a_reader_is_no_store_to_serve(tmp_path: Path) -> None:
    cometmq.open(tmp_path / "store").close()
    with cometmq.open(tmp_path / "store", mode="r") as reader, pytest.raises(errors.ReadOnlyStore):
        BrokerPlane(reader.handle, OPTIONS)


BATCH = OrderedBatch(
    attempt="attempt-1",
    pop_ms=1_700_000_000_000,
    invisible_ms=60_000,
    used_ms=1_700_000_000_001,
    acked=0b101,
    offsets=(100, 101, 105),
    visible_ms={105: 1_700_000_090_000},
    times={101: 2},
)


def test_ordered_batches_are_taken_and_given_back(plane: NativePlane) -> None:
    queues = [
        OrderedQueue("g", "T", 1, BATCH),
        OrderedQueue("g", "T", 2, OrderedBatch(offsets=(7,), pop_ms=3, times={})),
        OrderedQueue("h", "T", 1, OrderedBatch(offsets=tuple(range(64)), acked=(1 << 64) - 1)),
    ]
    before = plane.ordered_version()
    for queue in queues:
        plane.restore_ordered(queue)
    assert sorted(plane.ordered_batches(), key=lambda queue: queue[:3]) == queues
    assert plane.ordered_version() > before
    plane.clear_ordered("g", "T", 1)
    assert sorted(queue[:3] for queue in plane.ordered_batches()) == [("g", "T", 2), ("h", "T", 1)]


@pytest.mark.parametrize(
    "queue",
    [
        OrderedQueue("", "T", 0, BATCH),
        OrderedQueue("g", "T", -1, BATCH),
        OrderedQueue("g", "T", 0, OrderedBatch()),
        OrderedQueue("g", "T", 0, OrderedBatch(offsets=(5, 5))),
        OrderedQueue("g", "T", 0, OrderedBatch(offsets=tuple(range(65)))),
        OrderedQueue("g", "T", 0, OrderedBatch(offsets=(5,), pop_ms=-1)),
        OrderedQueue("g", "T", 0, OrderedBatch(offsets=(5,), attempt="x" * 257)),
    ],
)
def test_ordered_batches_that_cannot_be_are_refused(plane: NativePlane, queue: OrderedQueue) -> None:
    with pytest.raises(errors.InvalidArgument):
        plane.restore_ordered(queue)
    assert plane.ordered_batches() == []
