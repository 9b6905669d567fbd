"""Checks: the form of trace records, old ones too, and when they are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cometmq.client.instance.hooks import ConsumeContext
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.send.sending import SendFuture
from cometmq.client.trace.trace import TraceDispatcher, consume_tracer, trace_messages
from cometmq.client.trace.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    decode_trace,
    encode_trace,
)
from cometmq.errors import ConnectionLost
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.testing.clusters import cluster
from support.scripted_network import ScriptedNetwork, route_of
from support.virtual_loop import VirtualLoop, run_virtual

PUB = PubTrace(
    timestamp_ms=5,
    region_id="r",
    group="g",
    topic="t",
    message_id="AB",
    tags="T",
    keys="k1 k2",
    store_host="h:1",
    body_bytes=7,
    cost_ms=3,
    message_type=0,
    offset_message_id="7F",
    is_success=True,
)
BEFORE = SubBeforeTrace(
    timestamp_ms=5, region_id="r", group="g", request_id="Q", message_id="AB", retry_times=2, keys="k"
)
AFTER = SubAfterTrace(
    request_id="Q", message_id="AB", cost_ms=3, is_success=False, keys="k", context_code=4, timestamp_ms=9, group="g"
)

END = EndTransactionTrace(
    timestamp_ms=5,
    region_id="r",
    group="g",
    topic="t",
    message_id="AB",
    tags="T",
    keys="k1 k2",
    store_host="h:1",
    message_type=2,
    transaction_id="AB",
    state="COMMIT_MESSAGE",
    is_from_check=False,
)
RECALL = RecallTrace(timestamp_ms=5, region_id="r", group="g", topic="t", message_id="AB", is_success=True)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (PUB, "Pub|5|r|g|t|AB|T|k1 k2|h:1|7|3|0|7F|true"),
        (BEFORE, "SubBefore|5|r|g|Q|AB|2|k"),
        (AFTER, "SubAfter|Q|AB|3|false|k|4|9|g"),
        (replace(AFTER, timestamp_ms=None, group=None), "SubAfter|Q|AB|3|false|k|4"),
        (END, "EndTransaction|5|r|g|t|AB|T|k1 k2|h:1|2|AB|COMMIT_MESSAGE|false"),
        (RECALL, "Recall|5|r|g|t|AB|true"),
        # Absent texts are the word that Java's client writes: upstream's reader fails at an empty last field.
        (replace(PUB, tags="", keys="", offset_message_id=None), "Pub|5|r|g|t|AB|null|null|h:1|7|3|0|null|true"),
        (replace(BEFORE, keys=""), "SubBefore|5|r|g|Q|AB|2|null"),
        (replace(AFTER, keys=""), "SubAfter|Q|AB|3|false|null|4|9|g"),
        (
            replace(END, tags="", keys="", transaction_id=""),
            "EndTransaction|5|r|g|t|AB|null|null|h:1|2|null|COMMIT_MESSAGE|false",
        ),
    ],
)
def test_the_form(record: TraceRecord, text: str) -> None:
    assert encode_trace(record) == text.replace("|", "\x01") + "\x02"
    assert decode_trace(encode_trace(record)) == [record]


def test_marks_within_a_text_divide_nothing() -> None:
    (read,) = decode_trace(encode_trace(replace(PUB, tags="a\x01b", keys="c\x02d")))
    assert read == replace(PUB, tags="a b", keys="c d")


def test_no_record_ends_with_an_empty_field() -> None:
    """Java's reader drops such fields, and then fails for the whole trace message."""
    for record in (PUB, BEFORE, AFTER, END, RECALL):
        changes: dict[str, Any] = {name: "" for name in ("tags", "keys", "group") if hasattr(record, name)}
        assert not encode_trace(replace(record, **changes)).endswith("\x01\x02")


def test_forms_of_other_versions() -> None:
    def read(text: str) -> TraceRecord:
        (record,) = decode_trace(text.replace("|", "\x01"))
        return record

    assert read("Pub|5|r|g|t|AB|T|k1 k2|h:1|7|3|0|true") == replace(PUB, offset_message_id=None)
    assert read("Pub|5|r|g|t|AB|T|k1 k2|h:1|7|3|0|7F|true|10.0.0.1") == replace(PUB, client_host="10.0.0.1")
    bare = replace(AFTER, timestamp_ms=None, group=None)
    assert read("SubAfter|Q|AB|3|false|k|4") == bare
    assert read("SubAfter|Q|AB|3|false|k") == replace(bare, context_code=0)


def test_invalid_trace_records_are_skipped() -> None:
    odd = "Recall\x01x\x02" + "Unknown\x01x\x02" + "Pub\x01five\x02" + "SubBefore\x01\x02" + "\x02"
    assert decode_trace(encode_trace(BEFORE) + odd + encode_trace(AFTER)) == [BEFORE, AFTER]
    assert decode_trace("") == []


def test_messages_are_by_topic_and_have_all_keys() -> None:
    first, second = trace_messages([("t", PUB), ("u", BEFORE), ("t", AFTER)], trace_topic="traces")
    assert decode_trace(first.body.decode()) == [PUB, AFTER]
    assert (first.topic, first.keys) == ("traces", "AB k1 k2 k")
    assert decode_trace(second.body.decode()) == [BEFORE]


def test_a_message_has_a_length() -> None:
    long = replace(PUB, tags="x" * 60_000)
    messages = trace_messages([("t", long)] * 5, trace_topic="traces")
    assert [len(decode_trace(one.body.decode())) for one in messages] == [2, 2, 1]


class Sent:
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        self.bodies: list[Sequence[TraceRecord]] = []
        self.error: ConnectionLost | None = None

    def send(self, message: OutgoingMessage) -> SendFuture:
        self.bodies.append(decode_trace(message.body.decode()))
        future = SendFuture()
        if self.error is not None:
            future.set_error(self.error)
        return future


def test_records_are_sent_in_batches_or_after_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        sent = Sent()
        dispatcher = TraceDispatcher(sent, loop, trace_topic="traces", batch=10)
        for _ in range(12):
            dispatcher.add("t", PUB)
        await wait(loop, 0.01)
        assert [len(body) for body in sent.bodies] == [10]
        await wait(loop, 4.9)
        assert len(sent.bodies) == 1
        await wait(loop, 0.2)
        assert [len(body) for body in sent.bodies] == [10, 2]
        sent.error = ConnectionLost("gone")
        dispatcher.add("t", PUB)
        dispatcher.flush()
        assert "gone" in caplog.text
        for _ in range(3_000):
            dispatcher.add("t", PUB)
        assert dispatcher.dropped == 3_000 - 2_048

    run_virtual(main)


async def wait(loop: VirtualLoop, seconds: float) -> None:
    over = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


def test_producer_traces_its_sends() -> None:
    network = ScriptedNetwork(t=route_of("a"), RMQ_SYS_TRACE_TOPIC=route_of("b"))

    async def main(loop: VirtualLoop) -> None:
        settings = ProducerSettings(group="g", name_servers=("ns:1",), client_ip="10.0.0.1", enable_trace=True)
        engine = await SendEngine.open(settings, network_factory=network.factory, now_ms=loop.now_ms)
        result = await engine.send(OutgoingMessage(b"body", topic="t", tags="T", keys="k"), is_awaited=True)
        await engine.close()
        request = network.sent[-1][1]
        assert request.topic == "RMQ_SYS_TRACE_TOPIC"
        assert request.producer_group.startswith("_INNER_TRACE_PRODUCER-g-PRODUCE-")
        (record,) = decode_trace(request.body.decode())
        assert isinstance(record, PubTrace)
        assert (record.message_id, record.tags, record.keys, record.body_bytes) == (result.unique_id, "T", "k", 4)
        assert (record.store_host, record.region_id, record.is_success) == ("a:1", "DefaultRegion", True)

    run_virtual(main)


def consumed_by_a_listener(servers: str) -> None:
    consumed = threading.Event()
    consumer = PushConsumer(
        "g",
        name_servers=servers,
        enable_trace=True,
        trace_topic="traces",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        listener=lambda message: consumed.set(),
    )
    consumer.subscribe("t")
    consumer.start()
    assert consumed.wait(30)
    consumer.close()


def consumed_by_polling(servers: str) -> None:
    with PullConsumer(
        "g",
        name_servers=servers,
        enable_trace=True,
        trace_topic="traces",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    ) as consumer:
        consumer.subscribe("t")
        assert consumer.poll(timeout_ms=30_000)


@pytest.mark.parametrize("consume", [consumed_by_a_listener, consumed_by_polling])
def test_producer_and_consumer_trace_a_message(consume: Callable[[str], None]) -> None:
    with cluster() as running:
        servers = running.name_server_address
        with Producer("p", name_servers=servers, enable_trace=True, trace_topic="traces") as producer:
            result = producer.send("t", b"x", keys="k")
            consume(servers)
        stored = running.broker.store.read("traces")
        records = [record for message in stored for record in decode_trace(bytes(message.body).decode())]
    kinds = {type(record) for record in records}
    assert kinds == {PubTrace, SubBeforeTrace, SubAfterTrace}
    assert {record.message_id for record in records} == {result.unique_id}


def test_consumers_trace_messages_without_a_region() -> None:
    """Those of 4.9; a message whose sender wants no trace stays untold."""
    traced: list[TraceRecord] = []
    dispatcher: Any = SimpleNamespace(add=lambda topic, record: traced.append(record))
    tracer = consume_tracer(dispatcher, now_ms=lambda: 9)
    quiet, plain = (
        SimpleNamespace(properties=properties, message_id="7F", reconsume_times=1)
        for properties in ({"TRACE_ON": "false"}, {"UNIQ_KEY": "AB", "KEYS": "k"})
    )
    context = ConsumeContext(
        group="g",
        queue=MessageQueue(topic="t", broker_name="b", queue_id=0),
        messages=cast(Any, [quiet, plain]),
        began_ms=5,
        is_success=True,
    )
    assert tracer.before_consume is not None
    assert tracer.after_consume is not None
    tracer.before_consume(context)
    tracer.after_consume(context)
    before, after = traced
    assert isinstance(before, SubBeforeTrace)
    assert (before.region_id, before.message_id, before.keys) == ("DefaultRegion", "AB", "k")
    assert isinstance(after, SubAfterTrace)
    assert (after.request_id, after.message_id, after.is_success) == (before.request_id, "AB", True)
