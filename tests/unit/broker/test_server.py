"""Checks: a broker in this process serves over real sockets, starts once, stops cleanly, and keeps what it had."""

from __future__ import annotations

import json
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq._engine import decode_messages, record_of
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.errors import Error, StoreLocked
from cometmq.remoting.bodies.heartbeat import HeartbeatData
from cometmq.remoting.bodies.routes import BrokerData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store_config.consumer_offsets import ConsumerOffsets
from support.any_disk import ANY_DISK
from support.broker_twins import consumer

TIMEOUT_MS = 10_000
SEND = {
    "a": "p",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "TAGS\x01a\x02UNIQ_KEY\x01U1\x02",
    "j": "0",
    "k": "false",
    "m": "false",
}
PULL = {
    "consumerGroup": "g",
    "topic": "orders",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "0",
}


def make(path: Path, **settings: object) -> Broker:
    fixed = {"brokerName": "broker-a", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}
    return Broker(load_broker_config(path, listen=":0", settings={**fixed, **settings}, environ=ANY_DISK))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with make(tmp_path / "store") as broker:
        yield broker


def append_and_stop(path: Path) -> Path:
    """Leave a store with a queue of one topic; return its folder of configuration."""
    with make(path) as broker:
        broker.store.append("orders", b"1")
    return path / "config"


def test_topics_lost_with_a_damaged_file_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = append_and_stop(tmp_path / "store")
    for name in ("topics.json", "consumerOffset.json"):
        (config / name).write_text("{broken")
        (config / f"{name}.bak").unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the log has it: no warning beside it
        with make(tmp_path / "store"):
            pass
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    for name, text in zip(("topics.json", "consumerOffset.json"), errors, strict=True):
        assert text.startswith(f"damaged file passed over: {config / name}: ")
        kept = f"the next write keeps the damaged file as {name}.broken"
        assert text.endswith(f"there is no .bak, so the defaults were used; {kept}")
    (unknown,) = [record for record in caplog.records if "not configured" in record.getMessage()]
    assert (unknown.levelname, unknown.__dict__["names"]) == ("WARNING", "orders")


def test_topics_lost_with_their_file_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = append_and_stop(tmp_path / "store")
    for file in config.glob("topics.json*"):
        file.unlink()
    with make(tmp_path / "store"):
        pass
    assert [record.levelname for record in caplog.records if "not configured" in record.getMessage()] == ["WARNING"]


@pytest.mark.parametrize("given", [{}, {"connectionsMax": 1_000}])
def test_few_connections_are_a_warning_where_more_were_asked_for(
    given: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cometmq.remoting.connection_room.resource.getrlimit", lambda which: (1024, 1024))
    with make(tmp_path / "store", **given):
        pass
    warned = [record for record in caplog.records if record.getMessage().startswith("few connections fit")]
    assert len(warned) == len(given)


class StubRoutes:
    """Name servers that have one address of a broker name."""

    has_name_servers = True

    def __init__(self, address: str) -> None:
        self.address = address

    async def route(self, topic: str) -> TopicRouteData:
        broker = BrokerData(cluster="c", broker_name=topic, broker_addresses={0: self.address, 1: "10.0.0.9:1"})
        return TopicRouteData(broker_datas=(broker,))


def test_another_broker_with_the_same_name_and_id_is_reported_once_in_a_while(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def reported_with(address: str) -> list[tuple[str, str]]:
        monkeypatch.setattr(broker, "_registrar", StubRoutes(address))
        broker._on_loop(broker._look_for_rival())
        monkeypatch.undo()
        found = [record.__dict__ for record in caplog.records if "this name and id" in record.getMessage()]
        caplog.clear()
        return [(one["address"], one["other_address"]) for one in found]

    assert reported_with(broker.address) == []
    assert reported_with("10.0.0.2:10911") == [(broker.address, "10.0.0.2:10911")]
    assert reported_with("10.0.0.2:10911") == []
    broker._rival_quiet_until_s = 0.0
    assert reported_with("10.0.0.2:10911") == [(broker.address, "10.0.0.2:10911")]


@pytest.fixture
def channel(broker: Broker) -> Iterator[Channel]:
    with Channel(broker.address) as channel:
        yield channel


def ask(channel: Channel, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
    return channel.invoke(Command(code=code, fields=fields or {}, body=body), timeout_ms=TIMEOUT_MS)


def test_a_send_makes_its_topic_and_a_pull_its_group(broker: Broker, channel: Channel) -> None:
    for number in range(3):
        answer = ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"%d" % number)
        assert (answer.code, answer.fields["queueOffset"]) == (ResponseCode.SUCCESS, str(number))
        assert set(answer.fields) == {"msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON"}
    answer = ask(channel, RequestCode.PULL_MESSAGE, PULL)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "3")
    assert answer.body == b"".join(record_of(broker.store.get("orders", 0, offset)) for offset in range(3))
    topic = broker.control.topics.get("orders")
    assert topic is not None
    assert topic.write_queue_nums == 4
    assert broker.control.groups.get("g") is not None
    host, port = broker.store.get("orders", 0, 0).store_host
    assert f"{host}:{port}" == broker.address


@pytest.mark.parametrize("limit", [None, 50])
def test_a_pull_returns_32_messages_unless_the_broker_allows_more(tmp_path: Path, limit: int | None) -> None:
    settings = {} if limit is None else {"maxTransferCountOnMessageInMemory": limit}
    with make(tmp_path, **settings) as broker, Channel(broker.address) as channel:
        ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"first")
        broker.store.append_many("orders", [b"x"] * 99, queue=0)
        answer = ask(channel, RequestCode.PULL_MESSAGE, {**PULL, "maxMsgNums": "100"})
        assert answer.fields["nextBeginOffset"] == str(limit or 32)


@pytest.mark.parametrize(("percent", "code"), [(40, ResponseCode.SUCCESS), (0, ResponseCode.QUERY_NOT_FOUND)])
def test_a_queue_is_young_while_its_first_message_is_in_the_share_of_memory(
    tmp_path: Path, percent: int, code: ResponseCode
) -> None:
    """A new group begins at 0 there; elsewhere its consumers decide where."""
    with make(tmp_path, accessMessageInMemoryMaxRatio=percent) as broker, Channel(broker.address) as channel:
        ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"body")
        fields = {"consumerGroup": "new", "topic": "orders", "queueId": "0"}
        assert ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, fields).code == code


def test_a_heartbeat_over_a_socket(broker: Broker, channel: Channel) -> None:
    body = HeartbeatData(client_id="c", consumers=(consumer("g", "orders"),)).to_json()
    assert ask(channel, RequestCode.HEART_BEAT, body=body).fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    fields = {"consumerGroup": "g"}
    assert ask(channel, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields).body == b'{"consumerIdList":["c"]}'
    channel.close()
    with Channel(broker.address) as other:
        # The news of the closed connection and the question come on two ways.
        for _ in range(1_000):
            if ask(other, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields).code == ResponseCode.SYSTEM_ERROR:
                return
    pytest.fail("the group still has its member")


def test_a_sent_back_message_is_parked_and_delivered(tmp_path: Path) -> None:
    with make(tmp_path, messageDelayLevel="1s 1s 1s") as broker, Channel(broker.address) as channel:
        ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"body")
        place = str(broker.store.get("orders", 0, 0).physical_offset)
        fields = {"offset": place, "group": "g", "delayLevel": "1", "originTopic": "orders", "maxReconsumeTimes": "1"}
        assert ask(channel, RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
        parked = broker.store.get("SCHEDULE_TOPIC_XXXX", 0, 0)
        assert parked.properties["REAL_TOPIC"] == "%RETRY%g"
        pull = {**PULL, "topic": "%RETRY%g"}
        answer = ask(channel, RequestCode.PULL_MESSAGE, pull)
        assert answer.code == ResponseCode.SUCCESS, "the hold ends when the message is delivered"
        back = broker.store.get("%RETRY%g", 0, 0)
        assert (bytes(back.body), back.reconsume_times) == (b"body", 1)
        assert back.properties["RETRY_TOPIC"] == "orders"
        fields |= {"offset": str(back.physical_offset)}
        assert ask(channel, RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
        assert broker.store.get("%DLQ%g", 0, 0).reconsume_times == 2


def test_a_retry_send_above_its_maximum_is_a_dead_letter(broker: Broker, channel: Channel) -> None:
    answer = ask(channel, RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "%RETRY%g", "j": "3", "l": "2"}, b"body")
    assert answer.code == ResponseCode.SUCCESS
    found = broker.store.get("%DLQ%g", 0, 0)
    assert (bytes(found.body), found.message_id) == (b"body", answer.fields["msgId"])
    assert found.properties["CLUSTER"] == "DefaultCluster"


def test_a_reset_is_reported_to_the_next_pull(broker: Broker, channel: Channel) -> None:
    for _ in range(3):
        ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"x")
    ask(channel, RequestCode.PULL_MESSAGE, PULL)
    fields = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true", "queueId": "0", "offset": "1"}
    assert ask(channel, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == ResponseCode.SUCCESS
    answer = ask(channel, RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": "3"})
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")


def test_progress_survives_a_restart(tmp_path: Path) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"x")
        ask(channel, RequestCode.PULL_MESSAGE, PULL)
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "1"}
        assert ask(channel, RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS
    stored = ConsumerOffsets(tmp_path / "config")
    stored.load()
    assert stored.all() == [("g", "orders", 0, 1)]
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
        assert ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, fields).fields["offset"] == "1"


def test_a_second_start_is_refused_with_the_holders_name(broker: Broker) -> None:
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        make(broker.config.path).start()
    with pytest.raises(RuntimeError, match="started once"):
        broker.start()


def test_a_port_that_is_taken_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        config = load_broker_config(tmp_path, listen=f":{port}", environ=ANY_DISK)
        with pytest.raises(Error, match=str(port)):
            Broker(config).start()
    with make(tmp_path):
        pass


def test_stop_ends_held_pulls_and_refuses_later_requests(tmp_path: Path) -> None:
    broker = make(tmp_path)
    broker.start()
    held: list[Command] = []
    with Channel(broker.address) as channel:
        ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"x")
        waiting = threading.Thread(
            target=lambda: held.append(ask(channel, RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": "1"}))
        )
        waiting.start()
        while broker._plane.counters()["holds_now"] == 0:
            ask(channel, RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
        broker.stop()
        waiting.join()
        assert held[0].code == ResponseCode.PULL_NOT_FOUND
        broker.stop()
    with pytest.raises(Error), Channel(broker.address) as late:
        ask(late, RequestCode.GET_BROKER_CONFIG)


def test_counters_are_there(broker: Broker, channel: Channel) -> None:
    ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"x")
    broker.control.sample()
    counters = broker.counters()
    assert (counters["messages_in"], counters["net_open"]) == (1, 1)


def test_an_embedded_append_wakes_a_pull(broker: Broker, channel: Channel) -> None:
    broker.store.append("orders", b"embedded", queue=0)
    answer = ask(channel, RequestCode.PULL_MESSAGE, PULL)
    assert answer.code == ResponseCode.SUCCESS
    broker.store.set_progress("g", "orders", 0, 1)
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    assert ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, fields).fields["offset"] == "1"


def test_odd_entries_of_a_foreign_broker_do_not_keep_the_others_from_being_served(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (tmp_path / "commitlog").mkdir()
    odd = "x" * 300
    topics = {odd: {}, "": {}, "orders": {"readQueueNums": 1, "writeQueueNums": 1}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": {odd: {}, "": {}, "g": {}}}))
    offsets = {"orders@g": {"0": 0, "1": -1, "-3": 5}, "@g": {"0": 1}, "orders@": {"0": 1}, "a@b@c": {"0": 1}}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        assert ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"x").code == ResponseCode.SUCCESS
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
        assert ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, fields).fields["offset"] == "0"
    stored = json.loads((config / "topics.json").read_text().replace("\t", ""))["topicConfigTable"]
    assert set(topics) <= set(stored), "topics that we cannot serve are kept all the same"


def test_messages_before_a_damaged_unit_are_delivered(tmp_path: Path) -> None:
    """A pull that met a unit of no record failed whole, with the sound messages before it."""
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        for body in (b"a", b"b", b"c", b"d"):
            ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, body)
        ask(channel, RequestCode.PULL_MESSAGE, PULL)  # makes the group
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        # An opening would mend it; so it is damaged behind the broker's back.
        with next((tmp_path / "consumequeue" / "orders" / "0").iterdir()).open("r+b") as file:
            file.seek(2 * 20 + 8)
            file.write(bytes(4))  # the size of the third record
        for tags in ("*", "a"):
            fields = {**PULL, "subscription": tags}
            answer = ask(channel, RequestCode.PULL_MESSAGE, fields)
            assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "2")
            assert [message.body_bytes for message in decode_messages(answer.body)] == [b"a", b"b"]
            behind = ask(channel, RequestCode.PULL_MESSAGE, {**fields, "queueOffset": "2"})
            assert behind.code == ResponseCode.SYSTEM_ERROR
            assert "cometmq verify" in (behind.remark or "")
            after = ask(channel, RequestCode.PULL_MESSAGE, {**fields, "queueOffset": "3"})
            assert [message.body_bytes for message in decode_messages(after.body)] == [b"d"]
