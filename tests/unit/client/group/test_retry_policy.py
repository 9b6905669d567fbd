"""Checks: messages sent back, and those sent in their place, are as upstream's clients send them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cometmq.client.group.retry_policy import is_logical_broker, most_tries, resend_of, send_back_command, suspend_ms


@dataclass(frozen=True)
class Failed:
    stored_topic: str = "orders"
    physical_offset: int = 4711
    message_id: str = "7F00000100002A9F0000000000001267"
    unique_id: str | None = "FD00000000000000000000000000000230835FFD2B276971E014005B"
    reconsume_times: int = 0
    properties: dict[str, str] = field(default_factory=lambda: {"UNIQ_KEY": "u", "TAGS": "a", "WAIT": "true"})
    body_bytes: bytes = b"body"
    flag: int = 5


@pytest.mark.parametrize(
    ("setting", "orderly", "most"), [(-1, False, 16), (-1, True, 2**31 - 1), (0, False, 0), (3, False, 3), (3, True, 3)]
)
def test_how_often_a_message_is_tried(setting: int, orderly: bool, most: int) -> None:
    """Promise 9: 16 times by default."""
    assert most_tries(setting, orderly=orderly) == most


def test_sending_back() -> None:
    """Promise 72: the message is named by its place, as the Java client 5.3.3 was seen to name this one."""
    failed = Failed(stored_topic="Plain", physical_offset=44026)
    command = send_back_command(failed, group="g_conc", delay_level=1, most=1, unit_mode=False, broker_name="broker-a")
    assert command.code == 36
    assert command.body == b""
    assert command.fields == {
        "maxReconsumeTimes": "1",
        "offset": "44026",
        "bname": "broker-a",
        "delayLevel": "1",
        "originTopic": "Plain",
        "originMsgId": "FD00000000000000000000000000000230835FFD2B276971E014005B",
        "unitMode": "false",
        "group": "g_conc",
    }


def test_a_message_without_an_id_of_its_sender() -> None:
    failed = Failed(unique_id=None)
    command = send_back_command(failed, group="g", delay_level=0, most=16, unit_mode=True, broker_name="b")
    assert (command.fields["originMsgId"], command.fields["unitMode"]) == (failed.message_id, "true")
    assert resend_of(failed, group="g", most=16).properties["ORIGIN_MESSAGE_ID"] == failed.message_id


def test_the_topic_that_brokers_know() -> None:
    """The topic that users see lacks the namespace; a message that failed before is kept in the retry topic."""
    first = Failed(stored_topic="ns%orders")
    again = Failed(stored_topic="%RETRY%ns%g", properties={"RETRY_TOPIC": "ns%orders"})
    for failed in (first, again):
        command = send_back_command(failed, group="ns%g", delay_level=0, most=16, unit_mode=False, broker_name="b")
        assert command.fields["originTopic"] == "ns%orders"
        assert resend_of(failed, group="ns%g", most=16).properties["RETRY_TOPIC"] == "ns%orders"


def test_sending_in_its_place() -> None:
    resend = resend_of(Failed(), group="g", most=16)
    assert (resend.topic, resend.body, resend.flag) == ("%RETRY%g", b"body", 5)
    assert resend.properties == {
        "UNIQ_KEY": "u",
        "TAGS": "a",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "FD00000000000000000000000000000230835FFD2B276971E014005B",
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "16",
        "DELAY": "3",
    }


def test_later_tries_wait_longer_and_keep_the_first_id() -> None:
    """Promise 9: by delay level."""
    old = {"ORIGIN_MESSAGE_ID": "first", "TRAN_MSG": "true", "DELAY": "4", "RECONSUME_TIME": "2"}
    message = Failed(reconsume_times=2, properties=old)
    resend = resend_of(message, group="g", most=7)
    assert resend.properties == {
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "first",
        "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "7",
        "DELAY": "5",
    }
    assert old["TRAN_MSG"] == "true"


def test_brokers_that_are_none() -> None:
    assert is_logical_broker("__syslo__none")
    assert not is_logical_broker("broker-a")


@pytest.mark.parametrize(
    ("wanted", "default", "waits"), [(-1, 1000, 1000), (-1, 0, 10), (0, 1000, 10), (77, 1000, 77), (10**6, 1, 30_000)]
)
def test_how_long_an_orderly_queue_waits(wanted: int, default: int, waits: int) -> None:
    assert suspend_ms(wanted, default_ms=default) == waits
