"""Checks: settings have upstream's defaults, are checked in its order, and say what is wrong with them."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import datetime
from typing import Any, get_type_hints

import pytest

from cometmq.client import settings as module
from cometmq.client.settings import (
    ClientOptions,
    ClientSettings,
    ConsumerOptions,
    ConsumerSettings,
    PullOptions,
    PullSettings,
    PushOptions,
    PushSettings,
    settings_of,
)
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel

_NOW_MS = 1_700_000_000_000


def _push(**values: Any) -> PushSettings:
    return PushSettings(**{"group": "g", "name_servers": ("h:1",), **values})


def _pull(**values: Any) -> PullSettings:
    return PullSettings(**{"group": "g", "name_servers": ("h:1",), **values})


def _listener(message: object) -> None:
    del message


def test_defaults_of_a_push_consumer() -> None:
    """Promises 7, 25, 42, 49."""
    settings = _push()
    assert settings.message_model is MessageModel.CLUSTERING
    assert settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    expected = {
        "consume_thread_min": 20,
        "consume_thread_max": 20,
        "consume_concurrently_max_span": 2000,
        "pull_threshold_for_queue": 1000,
        "pull_threshold_size_for_queue_mib": 100,
        "pull_threshold_for_topic": -1,
        "pull_threshold_size_for_topic_mib": -1,
        "pull_interval_ms": 0,
        "consume_message_batch_max_size": 1,
        "pull_batch_size": 32,
        "post_subscription_when_pull": False,
        "max_reconsume_times": -1,
        "suspend_current_queue_time_ms": 1000,
        "consume_timeout_minutes": 15,
        "await_termination_when_shutdown_ms": 0,
        "pull_time_delay_when_exception_ms": 1000,
        "broker_suspend_max_time_ms": 15_000,
        "consumer_timeout_when_suspend_ms": 30_000,
        "poll_name_server_interval_ms": 30_000,
        "heartbeat_broker_interval_ms": 30_000,
        "persist_consumer_offset_interval_ms": 5_000,
        "rebalance_wait_interval_ms": 20_000,
        "rebalance_min_interval_ms": 1_000,
    }
    assert {name: getattr(settings, name) for name in expected} == expected
    settings.check(made_ms=_NOW_MS, listeners=[_listener])


def test_defaults_of_a_pull_consumer() -> None:
    settings = _pull()
    expected = {
        "broker_suspend_max_time_ms": 20_000,
        "consumer_timeout_when_suspend_ms": 30_000,
        "consumer_pull_timeout_ms": 10_000,
        "auto_commit": True,
        "auto_commit_interval_ms": 5_000,
        "pull_batch_size": 10,
        "pull_threshold_for_all": 10_000,
        "consume_max_span": 2_000,
        "pull_threshold_for_queue": 1_000,
        "pull_threshold_size_for_queue_mib": 100,
        "poll_timeout_ms": 5_000,
        "topic_metadata_check_interval_ms": 30_000,
        "max_reconsume_times": 16,
        "enable_stream_request_type": True,
    }
    assert {name: getattr(settings, name) for name in expected} == expected
    settings.check()


# Each row is wrong in one setting; in upstream's order.
_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"group": " "}, "a group needs a name"),
    ({"group": "DEFAULT_CONSUMER"}, "stands for none"),
    ({"message_model": None}, "message_model is None"),
    ({"consume_from_where": None}, "consume_from_where is None"),
    (
        {"consume_from_where": "first"},
        "give one of CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_TIMESTAMP",
    ),
    ({"consume_timestamp": "2023"}, "consume_timestamp is '2023'"),
    ({"allocate_strategy": None}, "allocate_strategy is None"),
    ({"listeners": []}, "there is no listener"),
    ({"listeners": [5]}, "the listener is 5"),
    ({"consume_thread_min": 0}, "consume_thread_min is 0: it must be from 1 to 1000"),
    ({"consume_thread_max": 1001}, "consume_thread_max is 1001"),
    ({"consume_thread_min": 2, "consume_thread_max": 1}, "must not be above consume_thread_max, 1"),
    ({"consume_concurrently_max_span": 65_536}, "consume_concurrently_max_span is 65536"),
    ({"pull_threshold_for_queue": 0}, "pull_threshold_for_queue is 0"),
    ({"pull_threshold_for_topic": 0}, "from 1 to 6553500, or -1 for none"),
    ({"pull_threshold_size_for_queue_mib": 1025}, "pull_threshold_size_for_queue_mib is 1025"),
    ({"pull_threshold_size_for_topic_mib": 0}, "pull_threshold_size_for_topic_mib is 0"),
    ({"pull_interval_ms": -1}, "pull_interval_ms is -1"),
    ({"consume_message_batch_max_size": 1025}, "consume_message_batch_max_size is 1025"),
    ({"pull_batch_size": 0}, "pull_batch_size is 0"),
    ({"pop_invisible_time_ms": 4999}, "pop_invisible_time_ms is 4999"),
    ({"pop_batch_nums": 33}, "pop_batch_nums is 33"),
]


def _check(values: dict[str, Any]) -> None:
    listeners = values.pop("listeners", [_listener])
    _push(**values).check(made_ms=_NOW_MS, listeners=listeners)


@pytest.mark.parametrize(("values", "text"), _WRONG, ids=[text for _, text in _WRONG])
def test_each_check(values: dict[str, Any], text: str) -> None:
    """Promise 50."""
    with pytest.raises(InvalidArgument) as caught:
        _check(dict(values))
    assert text in str(caught.value)


def test_of_two_wrong_settings_the_one_checked_first_is_named() -> None:
    """Promise 50: upstream's order. Rows about the same setting are passed over."""
    for (first, text), (second, _) in itertools.combinations(_WRONG, 2):
        if first.keys() & second.keys():
            continue
        with pytest.raises(InvalidArgument) as caught:
            _check({**first, **second})
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"group": "DEFAULT_CONSUMER"}, "stands for none"),
        ({"consumer_timeout_when_suspend_ms": 10_000}, "must not be below broker_suspend_max_time_ms, 20000"),
        ({"auto_commit_interval_ms": 999}, "auto_commit_interval_ms is 999"),
        ({"auto_commit": 1}, "auto_commit is 1: it must be True or False"),
        ({"trace_topic": " "}, "trace_topic"),
        ({"header_format": "JSON"}, "header_format is 'JSON': give one of JSON, ROCKETMQ"),
        ({"pull_batch_size": "9"}, "pull_batch_size is '9': it must be a whole number"),
        ({"pull_batch_size": True}, "it must be a whole number"),
        ({"name_servers": ()}, "no name server is known"),
    ],
)
def test_checks_of_a_pull_consumer(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        _pull(**values).check()
    assert text in str(caught.value)


def test_the_time_to_begin_at() -> None:
    """Promise 3: half an hour before the consumer was made, unless another is given."""
    assert _push().first_start_ms(_NOW_MS) == _NOW_MS - 30 * 60 * 1000
    when = datetime(2023, 11, 14, 22, 13, 20)
    assert _push(consume_timestamp="20231114221320").first_start_ms(_NOW_MS) == int(when.timestamp()) * 1000
    assert _push(consume_timestamp=when).first_start_ms(_NOW_MS) == int(when.timestamp()) * 1000
    for wrong in ("20231114", "20231314221320", "2023111422132x", "٢٠٢٣١١١٤٢٢١٣٢٠", "00000000000000", 5):
        with pytest.raises(InvalidArgument):
            _push(consume_timestamp=wrong).first_start_ms(_NOW_MS)


def test_options_become_settings() -> None:
    """Promise 5: several name servers with semicolons between them."""
    made = settings_of(
        PushSettings,
        {"message_model": "broadcasting", "pull_batch_size": 7},
        name_servers="a:1;b:2",
        environ={"NAMESRV_ADDR": "c:3"},
        group="g",
    )
    assert made.name_servers == ("a:1", "b:2")
    assert made.message_model is MessageModel.BROADCASTING
    assert (made.group, made.pull_batch_size) == ("g", 7)
    assert settings_of(ClientSettings, {}, name_servers=["a:1", "b:2"], environ={}).name_servers == ("a:1", "b:2")


def test_the_environment_fills_in() -> None:
    """Promise 53: whom to ask for name servers may be said in the environment, as the articles have it."""
    assert settings_of(ClientSettings, {}, environ={"NAMESRV_ADDR": "http://c:3"}).name_servers == ("c:3",)
    made = settings_of(
        ClientSettings, {}, environ={"rocketmq.namesrv.domain": "d", "rocketmq.namesrv.domain.subgroup": "s"}
    )
    assert (made.name_server_domain, made.name_server_subgroup) == ("d", "s")
    made = settings_of(ClientSettings, {"name_server_domain": "e"}, environ={"rocketmq.namesrv.domain": "d"})
    assert made.name_server_domain == "e"
    made.check()


@pytest.mark.parametrize(
    ("name_servers", "options", "text"),
    [
        (5, {}, "name_servers is 5: write 'host:9876'"),
        ([5], {}, "5"),
        ("h:1", {"namespace": 5}, "namespace is 5: it is a text"),
    ],
)
def test_values_that_are_not_texts(name_servers: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        settings_of(ClientSettings, options, name_servers=name_servers, environ={})


@pytest.mark.parametrize("wrong", ["group", "name_servers", "pull_batch"])
def test_unknown_options(wrong: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        settings_of(PushSettings, {wrong: 5}, environ={}, group="g")
    assert f"no option {wrong!r}" in str(caught.value)
    if wrong == "pull_batch":
        assert "did you mean pull_batch_size?" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (ClientOptions, ClientSettings),
        (ConsumerOptions, ConsumerSettings),
        (PushOptions, PushSettings),
        (PullOptions, PullSettings),
    ],
)
def test_options_and_settings_are_the_same(options: type, kind: type[ClientSettings]) -> None:
    own = {known.name for known in dataclasses.fields(kind)} - {"group", "name_servers"}
    assert set(get_type_hints(options, vars(module))) == own
    assert all(name in (kind.__doc__ or "") or kind is not ClientSettings for name in own)
