"""Checks: requests to brokers about popped messages, and the redelivery time of failed ones."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.client.group.subscriptions import make_subscription
from cometmq.client.pop.pop_handles import PopHandle, PopTimes
from cometmq.client.pop.pop_policy import (
    ACKS_PER_REQUEST_MAX,
    PopStatus,
    ack_request,
    batch_ack_requests,
    fits_batch,
    invisible_after_failure_ms,
    invisible_request,
    invisible_when_tried_out_ms,
    notification_request,
    pop_request,
    pop_status,
    popped_times,
    usual_invisible_ms,
)
from cometmq.errors import MalformedCommand
from cometmq.remoting.bodies.acks import BatchAckMessageRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command, HeaderFormat

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=-1)


def _handle(
    offset: int, *, start: int = 100, kind: int = 0, pop_ms: int = 1, revive: int = 3, queue: int = 2
) -> PopHandle:
    return PopHandle.parse(f"{start} {pop_ms} 60000 {revive} {kind} b {queue} {offset}")


@pytest.mark.parametrize(("from_first", "mode"), [(True, "0"), (False, "1")])
def test_fields_of_a_pop(from_first: bool, mode: str) -> None:
    command = pop_request(
        QUEUE,
        make_subscription("T", "a || b", now_ms=7),
        group="g",
        max_messages=32,
        invisible_ms=60_000,
        poll_ms=15_000,
        from_first=from_first,
    )
    assert command.code == RequestCode.POP_MESSAGE
    assert command.fields == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "15000",
        "bornTime": "0",
        "initMode": mode,
        "expType": "TAG",
        "exp": "a || b",
        "order": "false",
        "bname": "b",
    }
    # No binary header has room for the code, so a frame is JSON whatever was wanted.
    assert Command.decode(command.encode()).format is HeaderFormat.JSON
    asked = notification_request(QUEUE, group="g", poll_ms=10)
    assert (asked.code, asked.fields["pollTime"], asked.fields["queueId"]) == (RequestCode.NOTIFICATION, "10", "-1")


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, PopStatus.FOUND), (19, PopStatus.NO_NEW_MESSAGE), (209, PopStatus.POLLING_FULL),
     (210, PopStatus.POLLING_TIMEOUT), (17, None), (99, None)],
)  # fmt: skip
def test_meaning_of_codes(code: int, status: PopStatus | None) -> None:
    assert pop_status(code) is status


def test_times_of_an_answer() -> None:
    fields = {"popTime": "5", "invisibleTime": "6", "reviveQid": "7"}
    assert popped_times(Command(code=0, fields=fields)) == PopTimes(pop_ms=5, invisible_ms=6, revive_queue_id=7)
    for name in fields:
        with pytest.raises(MalformedCommand):
            popped_times(Command(code=0, fields={other: text for other, text in fields.items() if other != name}))


def test_requests_about_one_message() -> None:
    handle = _handle(101, kind=1)
    ack = ack_request(handle, group="g", topic="T")
    assert ack.fields == {
        "consumerGroup": "g",
        "topic": "%RETRY%g_T",
        "queueId": "2",
        "offset": "101",
        "extraInfo": "100 1 60000 3 1 b 2 101",
        "bname": "b",
    }
    change = invisible_request(handle, group="g", topic="T", invisible_ms=10_000)
    assert change.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    assert change.fields == {**ack.fields, "invisibleTime": "10000"}


def test_one_request_for_many_messages() -> None:
    handles = [_handle(100), _handle(102), _handle(109), _handle(7, start=7, kind=1), _handle(100, pop_ms=2)]
    (command,) = batch_ack_requests([(handle, "T") for handle in handles], group="g", broker_name="b")
    body = BatchAckMessageRequestBody.from_json(command.body)
    assert body.broker_name == "b"
    told = [
        (ack.topic, ack.retry, ack.start_offset, ack.pop_time_ms, ack.revive_queue_id, ack.queue_id,
         list(ack.acknowledged))
        for ack in body.acks
    ]  # fmt: skip
    assert told == [("T", "0", 100, 1, 3, 2, [0, 2, 9]), ("T", "1", 7, 1, 3, 2, [0]), ("T", "0", 100, 2, 3, 2, [0])]
    assert b'"b":"BQI="' in command.body  # the specification's example
    assert not fits_batch(_handle(99))
    assert not fits_batch(_handle(100 + 4096))
    many = [(_handle(number, start=number), "T") for number in range(ACKS_PER_REQUEST_MAX + 1)]
    assert len(list(batch_ack_requests(many, group="g", broker_name="b"))) == 2


@pytest.mark.parametrize(
    "other",
    [{"topic": "U"}, {"kind": 1}, {"queue": 3}, {"start": 99}, {"pop_ms": 2}, {"revive": 4}],
    ids=lambda change: next(iter(change)),
)
def test_messages_of_different_pops_are_not_of_one_set(other: dict[str, Any]) -> None:
    """Brokers find a checkpoint by topic, kind, queue, first offset, time and revive queue."""
    fields = {name: value for name, value in other.items() if name != "topic"}
    handles = [(_handle(100), "T"), (_handle(100, **fields), other.get("topic", "T"))]
    (command,) = batch_ack_requests(handles, group="g", broker_name="b")
    found = BatchAckMessageRequestBody.from_json(command.body).acks
    assert len(found) == 2
    assert all(len(list(one.acknowledged)) == 1 for one in found)


def test_how_long_failed_messages_stay_hidden() -> None:
    assert [invisible_after_failure_ms(0, times) for times in (0, 1, 14, 15, 16, 99)] == [
        10_000, 30_000, 3_600_000, 7_200_000, 7_200_000, 7_200_000,
    ]  # fmt: skip
    assert invisible_after_failure_ms(2, 7) == 60_000
    assert usual_invisible_ms(5_000) == 5_000
    assert usual_invisible_ms(300_000) == 300_000
    assert usual_invisible_ms(4_999) == usual_invisible_ms(300_001) == 60_000


def test_messages_that_were_tried_often_enough() -> None:
    assert invisible_when_tried_out_ms(0) == 10_000
    assert invisible_when_tried_out_ms(10_000) == 30_000
    assert invisible_when_tried_out_ms(29_999) == 30_000
    assert invisible_when_tried_out_ms(7_200_000) == 7_200_000
    assert invisible_when_tried_out_ms(14_400_000) == 7_200_000
    assert invisible_when_tried_out_ms(14_400_001) is None
