"""Checks: messages are found by key, time, id and place, with upstream's answers where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.remoting.bodies.queries import QueryConsumeQueueResponseBody
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from support.broker_twins import Caller, Rig, consumer, run


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        for number in range(6):
            rig.store.append("orders", b"%d" % number, queue=0, keys=["all", f"k{number}"], tags="a")
        yield rig


def find(rig: Rig, key: str, **changes: str) -> Command:
    fields = {"topic": "orders", "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    fields |= {"_UNIQUE_KEY_QUERY": "false", **changes}
    answer: Command = rig.run(RequestCode.QUERY_MESSAGE, fields)
    return answer


def records(rig: Rig, *offsets: int) -> bytes:
    """The records as the log has them."""
    log = (rig.store.path / "commitlog" / f"{0:020d}").read_bytes()
    places = [rig.store.get("orders", 0, offset).physical_offset for offset in offsets]
    return b"".join(log[place : place + int.from_bytes(log[place : place + 4], "big")] for place in places)


def test_by_key(rig: Rig) -> None:
    answer = find(rig, "k3")
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, records(rig, 3))
    assert set(answer.fields) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert find(rig, "all").body == records(rig, *range(6)), "by place in the log"
    assert find(rig, "all", maxNum="2").body == records(rig, 4, 5), "the newest, when not all"


def test_by_tag(rig: Rig) -> None:
    """Since 5.4, a query names the type of its key; K, U and other types are answered as without."""
    for number in range(3):
        rig.store.append("orders", b"b%d" % number, queue=0, keys=["a", "b"], tags="b")
    assert find(rig, "b", indexType="T").body == records(rig, 6, 7, 8), "by place in the log"
    assert find(rig, "a", indexType="T", maxNum="2").body == records(rig, 4, 5), "not those with a as a key"
    assert find(rig, "a", indexType="K").body == find(rig, "a").body == records(rig, 6, 7, 8)
    assert find(rig, "k3", indexType="U").body == records(rig, 3)
    for changes in ({"key": "c"}, {"topic": "none"}, {"endTimestamp": "-1"}, {"maxNum": "0"}):
        answer = find(rig, changes.pop("key", "b"), indexType="T", **changes)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND, changes
    first_ms = rig.store.get("orders", 0, 0).store_timestamp_ms
    last_ms = rig.store.get("orders", 0, 8).store_timestamp_ms
    everything = {"beginTimestamp": str(first_ms), "endTimestamp": str(last_ms)}
    assert find(rig, "b", indexType="T", **everything).body == records(rig, 6, 7, 8)
    assert find(rig, "b", indexType="T", beginTimestamp=str(last_ms + 1)).code == ResponseCode.QUERY_NOT_FOUND


def test_by_time(rig: Rig) -> None:
    first_ms = rig.store.get("orders", 0, 0).store_timestamp_ms
    assert find(rig, "k0", endTimestamp=str(first_ms)).body == records(rig, 0)
    assert find(rig, "k0", endTimestamp=str(first_ms - 1)).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("changes", [{"key": "none"}, {"topic": "none"}, {"maxNum": "0"}, {"maxNum": "-1"}])
def test_nothing_found(rig: Rig, changes: dict[str, str]) -> None:
    answer = find(rig, changes.pop("key", "k3"), **changes)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "can not find message, maybe time range not correct"
    assert set(answer.fields) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


def test_by_unique_id_the_limit_is_the_brokers(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"defaultQueryMaxNum": 3, "maxMsgsNumBatch": 4}) as rig:
        for number in range(6):
            rig.store.append("orders", b"%d" % number, queue=0, keys="k", properties={"UNIQ_KEY": "U"})
        assert find(rig, "U", _UNIQUE_KEY_QUERY="true", maxNum="64").body == records(rig, 3, 4, 5)
        assert find(rig, "k", maxNum="64").body == records(rig, 2, 3, 4, 5)


def test_an_answer_fits_a_frame(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(records(rig, 5))
    monkeypatch.setattr("cometmq.broker.queries.BODY_BYTES_MAX", one + one // 2)
    assert find(rig, "all").body == records(rig, 5)
    monkeypatch.setattr("cometmq.broker.queries.BODY_BYTES_MAX", 1)
    assert find(rig, "all").body == records(rig, 5), "one message comes whatever its size"


def test_by_physical_offset(rig: Rig) -> None:
    place = rig.store.get("orders", 0, 2).physical_offset
    answer = rig.run(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, records(rig, 2))
    for bad in (place + 1, 10**9, -1):
        answer = rig.run(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(bad)})
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {bad}")


def test_the_oldest(rig: Rig) -> None:
    fields = {"topic": "orders", "queueId": "0"}
    expected = str(rig.store.get("orders", 0, 0).store_timestamp_ms)
    assert rig.run(RequestCode.GET_EARLIEST_MSG_STORETIME, fields).fields == {"timestamp": expected}
    assert rig.run(RequestCode.GET_EARLIEST_MSG_STORETIME, {**fields, "queueId": "3"}).fields == {"timestamp": "-1"}
    answer = rig.run(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "orders"})
    assert (answer.code, answer.remark) == (1, "the request has no queueId")


def units(rig: Rig, **changes: str) -> Command:
    fields = {"topic": "orders", "queueId": "0", "index": "2", "count": "3", **changes}
    answer: Command = rig.run(RequestCode.QUERY_CONSUME_QUEUE, fields)
    return answer


def test_units_of_a_queue(rig: Rig) -> None:
    body = QueryConsumeQueueResponseBody.from_json(units(rig).body)
    assert (body.min_queue_index, body.max_queue_index) == (0, 6)
    assert body.queue_data is not None
    places = [(unit.physic_offset, unit.physic_size, unit.tags_code) for unit in body.queue_data]
    messages = [rig.store.get("orders", 0, offset) for offset in (2, 3, 4)]
    assert places == [(message.physical_offset, message.record_bytes, ord("a")) for message in messages]
    assert (body.subscription, body.filter_data) == (None, None)
    body = QueryConsumeQueueResponseBody.from_json(units(rig, consumerGroup="g").body)
    assert body.filter_data == "g@orders is not online!"
    run(rig.heartbeat(Caller(), consumer("g", "orders")))
    body = QueryConsumeQueueResponseBody.from_json(units(rig, consumerGroup="g").body)
    assert body.subscription is not None
    assert body.subscription.topic == "orders"


def test_an_answer_has_so_many_queue_units(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.queries.UNITS_MAX", 2)
    body = QueryConsumeQueueResponseBody.from_json(units(rig).body)
    assert body.queue_data is not None
    assert len(body.queue_data) == 2


def test_units_that_are_not_there(rig: Rig) -> None:
    answer = units(rig, index="11000")
    assert (answer.code, answer.remark) == (0, "Index 11000 of 0@orders is not exist!")
    assert QueryConsumeQueueResponseBody.from_json(answer.body).queue_data == ()
    answer = units(rig, queueId="9")
    assert (answer.code, answer.remark) == (1, "9@orders is not exist!")
    assert QueryConsumeQueueResponseBody.from_json(units(rig, count="-1").body).queue_data == ()


def test_units_of_a_topic_that_is_deleted_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cometmq.broker.queues.Queues._found", lambda *_: (False, 0, 6))
    answer = units(rig, topic="deleted")
    assert answer.code == 0
    assert QueryConsumeQueueResponseBody.from_json(answer.body).queue_data == ()
    assert caplog.records == []
