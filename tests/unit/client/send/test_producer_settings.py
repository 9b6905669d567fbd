"""Checks: a producer's settings have upstream's defaults, and wrong ones are named."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from cometmq.client.send.producer_settings import ProducerOptions, ProducerSettings
from cometmq.client.settings import settings_of
from cometmq.errors import InvalidArgument


def made(**options: Any) -> ProducerSettings:
    return settings_of(ProducerSettings, options, name_servers="127.0.0.1:9876", environ={}, group="g")


def test_upstreams_defaults() -> None:
    settings = made()
    settings.check()
    assert (settings.create_topic_key, settings.default_topic_queue_nums) == ("TBW102", 4)
    assert (settings.send_msg_timeout_ms, settings.send_msg_max_timeout_per_request_ms) == (3000, -1)
    assert (settings.compress_msg_body_over_bytes, settings.compress_level, int(settings.compress_type)) == (4096, 5, 3)
    assert (settings.retry_times_when_send_failed, settings.retry_times_when_send_async_failed) == (2, 2)
    assert settings.max_message_size_bytes == 4194304
    assert settings.retry_response_codes == {17, 14, 1, 2, 16, 204, 205, 1500}
    assert (settings.back_pressure_for_async_send_num, settings.back_pressure_for_async_send_size_bytes) == (
        1024,
        104857600,
    )
    assert (settings.batch_max_delay_ms, settings.batch_max_bytes, settings.total_batch_max_bytes) == (
        10,
        32768,
        33554432,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("send_msg_timeout_ms", 0),
        ("send_msg_max_timeout_per_request_ms", 0),
        ("compress_level", 10),
        ("compress_type", "GZIP"),
        ("retry_times_when_send_failed", -1),
        ("back_pressure_for_async_send_num", 9),
        ("back_pressure_for_async_send_size_bytes", (1 << 20) - 1),
        ("batch_max_delay_ms", 30_001),
        ("batch_max_delay_ms", 0),
        ("batch_max_bytes", (2 << 20) + 1),
        ("max_message_size_bytes", 16 << 20),
        ("accumulate", 1),
        ("topics", ("SCHEDULE_TOPIC_XXXX",)),
        ("retry_response_codes", frozenset({"17"})),
    ],
)
def test_wrong_values(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match="SCHEDULE_TOPIC" if name == "topics" else name):
        made(**{name: value}).check()


@pytest.mark.parametrize("group", ["", " ", "DEFAULT_PRODUCER", "a b", "x" * 121])
def test_groups_that_cannot_be(group: str) -> None:
    with pytest.raises(InvalidArgument, match="group"):
        ProducerSettings(group=group, name_servers=("127.0.0.1:9876",)).check()


def test_an_unknown_option_gets_the_nearest_name() -> None:
    with pytest.raises(InvalidArgument, match="did you mean send_msg_timeout_ms"):
        made(send_timeout_ms=5)


def test_every_setting_is_an_option() -> None:
    settings = {each.name for each in fields(ProducerSettings)}
    assert settings - set(ProducerOptions.__annotations__) == {"group", "name_servers"}
