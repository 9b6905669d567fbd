"""Checks: transient failures, the time that they are waited for, and rate-limited logging."""

from __future__ import annotations

import logging

import pytest

from cometmq.client.instance.outages import OutageLog, may_pass, pause_s
from cometmq.errors import (
    BrokerError,
    BrokerNotFound,
    ClientStateError,
    ConnectionLost,
    Error,
    InvalidArgument,
    LimitReached,
    RequestTimeout,
    RouteNotFound,
)
from cometmq.remoting.bodies.message_queue import MessageQueue

LOG = logging.getLogger("cometmq.client.test_outages")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionLost("gone"), True),
        (RequestTimeout("silent"), True),
        (BrokerNotFound("nobody"), True),
        (RouteNotFound("nowhere"), True),
        (LimitReached("full"), True),
        (BrokerError("busy", code=2), True),
        (BrokerError("no permission", code=16), False),
        (BrokerError("no group", code=26), False),
        (InvalidArgument("wrong"), False),
        (ClientStateError("closed"), False),
    ],
)
def test_transient_errors(error: Error, passes: bool) -> None:
    assert may_pass(error) is passes


def test_pauses_grow_to_their_end() -> None:
    pauses = [pause_s(tries) for tries in range(1, 20)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[-1] == pauses[-2] == 2


def test_the_first_read_before_a_heartbeat_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    queue = MessageQueue(topic="t", broker_name="b", queue_id=0)
    troubles = OutageLog(LOG, group="g")
    for _ in range(3):
        troubles.fails(queue, BrokerError("no consumer of it has sent a heartbeat", code=24))
    assert [one.levelname for one in caplog.records] == ["INFO", "WARNING"]
    caplog.clear()
    troubles.works(queue)
    troubles.fails(queue, BrokerError("no consumer of it has sent a heartbeat", code=24))
    assert [one.levelname for one in caplog.records] == ["INFO", "INFO"]


def test_outages_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    one, two = (MessageQueue(topic="t", broker_name="b", queue_id=number) for number in (0, 1))
    other = MessageQueue(topic="t", broker_name="c", queue_id=-1)
    troubles = OutageLog(LOG, group="g")
    assert not troubles
    for queue in (one, two, one, other, two):
        troubles.fails(queue, ConnectionLost("gone"))
    troubles.fails(one, BrokerError("refused", code=16))
    troubles.fails(one, BrokerError("refused", code=16))
    assert troubles
    warned = [record.getMessage() for record in caplog.records]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert [text.split("; retrying")[0].partition("cannot read from ")[2] for text in warned] == [
        "broker b",
        "broker c",
        "queue 0 of t at b",
    ]
    caplog.clear()
    troubles.works(two)
    troubles.works(two)
    assert [record.getMessage() for record in caplog.records] == ["group g: broker b can be read again"]
    troubles.works(one)
    troubles.works(other)
    assert not troubles
    assert [record.levelname for record in caplog.records] == ["INFO"] * 3


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (BrokerError("the topic[t] pulling message is forbidden", code=16), "ERROR"),
        (BrokerError("parse the consumer's subscription failed", code=23), "ERROR"),
        (BrokerError("The broker does not support consumer to filter message by SQL92", code=1), "ERROR"),
        (BrokerError("out of memory", code=1), "WARNING"),
        (BrokerError("the consumer's group info not exist", code=24), "WARNING"),
    ],
)
def test_refusals_that_last_are_errors(caplog: pytest.LogCaptureFixture, error: Error, level: str) -> None:
    queue = MessageQueue(topic="t", broker_name="b", queue_id=0)
    troubles = OutageLog(LOG, group="g")
    troubles.fails(queue, BrokerError("the group is not known yet", code=26))
    for _ in range(3):
        troubles.fails(queue, error)
    assert len(caplog.records) == (2 if level == "ERROR" else 1)
    record = caplog.records[-1]
    assert record.levelname == level
    assert getattr(record, "refusal", None) is (error if level == "ERROR" else None)
