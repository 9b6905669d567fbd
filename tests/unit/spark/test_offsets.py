"""Checks: every form of offsets as JSON, streams' offsets, and their meaning for the queues that are there."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection

import pytest

from cometmq.spark.catalog import Ends, selected_queues, selected_topics
from cometmq.spark.errors import DataLoss, OptionError
from cometmq.spark.offsets import (
    EARLIEST,
    LATEST,
    QueueKey,
    decode_stream_offset,
    encode_stream_offset,
    parse_assigned,
    parse_offsets,
)
from cometmq.spark.options import OptionMap, ReadOptions, Subscription
from cometmq.spark.planning import QueueRange
from cometmq.spark.ranges import batch_ranges, starting_position


class Cluster:
    """A catalog without a store."""

    def __init__(self, **queues: dict[int, tuple[int, int]]) -> None:
        self.queues = queues

    def topics(self) -> list[str]:
        return ["SCHEDULE_TOPIC_XXXX", *self.queues]

    def ends(self, topic: str) -> dict[QueueKey, Ends]:
        return {QueueKey(topic, queue): Ends(*ends) for queue, ends in self.queues[topic].items()}

    def offset_at(self, key: QueueKey, time_ms: int) -> int:
        low, high = self.queues[key.topic][key.queue_id]
        return min(max(time_ms, low), high)

    def stored_ms(self, key: QueueKey, offset: int) -> int | None:
        return 1_700_000_000_000 + offset

    def row_bytes(self, one: QueueRange, tags: Collection[str] = ()) -> float:
        return 100.0


CLUSTER = Cluster(a={0: (0, 10), 1: (5, 9)}, b={0: (0, 0)})


def ranges(**options: str) -> list[tuple[str, int, int, int]]:
    found = ReadOptions.of(OptionMap({"path": "/s", "topic": "a", **options}))
    queues = selected_queues(CLUSTER, selected_topics(CLUSTER, found.subscription))
    return [(one.topic, one.queue_id, one.start, one.end) for one in batch_ranges(CLUSTER, queues, found)]


# --- JSON


def test_words() -> None:
    assert parse_offsets("earliest", "x") == EARLIEST
    assert parse_offsets("LATEST", "x") == LATEST


def test_nested_forms_are_the_same() -> None:
    plain = parse_offsets('{"a": {"0": 23, "1": -2}, "b": {"0": -1}}', "x")
    assert plain == {QueueKey("a", 0): 23, QueueKey("a", 1): EARLIEST, QueueKey("b", 0): LATEST}
    nested = parse_offsets('{"a": {"broker-a": {"0": 23, "1": -2}}, "b": {"0": -1}}', "x")
    assert nested == {
        QueueKey("a", 0, "broker-a"): 23,
        QueueKey("a", 1, "broker-a"): EARLIEST,
        QueueKey("b", 0): LATEST,
    }
    # A store does not know its broker's name: there they are the same.
    assert ranges(startingOffsets='{"a": {"broker-a": {"0": 3}}}') == ranges(startingOffsets='{"a": {"0": 3}}')


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("newest", "neither earliest nor latest nor JSON"),
        ("{", "nor JSON"),
        ("[1]", "not a JSON object"),
        ('{"a": 5}', "needs its queues"),
        ('{"a": {"x": 5}}', "not a queue"),
        ('{"a": {"-1": 5}}', "not a queue"),
        ('{"a": {"0": -3}}', "-2 .earliest. or -1"),
        ('{"a": {"0": "5"}}', "not an offset"),
        ('{"a": {"0": true}}', "not an offset"),
        ('{"a": {"0": 1e3}}', "not an offset"),
    ],
)
def test_bad_offsets(text: str, match: str) -> None:
    with pytest.raises(OptionError, match=match) as caught:
        parse_offsets(text, "startingOffsets")
    assert caught.value.option == "startingOffsets"


def test_assigned() -> None:
    assert parse_assigned('{"a": [0, 1]}') == {"a": {0, 1}}
    for text in ("{}", '{"a": []}', '{"a": 0}', '{"a": [-1]}', "x"):
        with pytest.raises(OptionError, match="assign"):
            parse_assigned(text)


def test_stream_offsets_survive_json() -> None:
    position = {QueueKey("a", 10): 5, QueueKey("a", 2): 7, QueueKey("%RETRY%g", 0): 1, QueueKey("b", 1, "x/y"): 3}
    encoded = encode_stream_offset(position)
    assert list(encoded) == ["%RETRY%g/0", "a/2", "a/10", "b/x/y/1"]
    assert decode_stream_offset(json.loads(json.dumps(encoded))) == position
    again = dict(reversed(list(position.items())))
    assert json.dumps(encode_stream_offset(again)) == json.dumps(encoded)


# --- Their meaning


def test_everything_by_default() -> None:
    assert ranges() == [("a", 0, 0, 10), ("a", 1, 5, 9)]


def test_explicit() -> None:
    assert ranges(startingOffsets='{"a": {"0": 3}}', endingOffsets='{"a": {"0": 7, "1": -1}}') == [
        ("a", 0, 3, 7),
        ("a", 1, 5, 9),
    ]


def test_start_at_the_end_is_empty() -> None:
    assert ranges(startingOffsets='{"a": {"0": 10, "1": 9}}') == [("a", 0, 10, 10), ("a", 1, 9, 9)]
    assert ranges(startingOffsets='{"a": {"0": 8}}', endingOffsets='{"a": {"0": 2}}')[0] == ("a", 0, 8, 8)


def test_times() -> None:
    assert ranges(startingTimestamp="6", endingTimestamp="8") == [("a", 0, 6, 8), ("a", 1, 6, 8)]
    assert ranges(startingOffsetsByTimestamp='{"a": {"0": 4}}') == [("a", 0, 4, 10), ("a", 1, 5, 9)]
    assert ranges(endingOffsetsByTimestamp='{"a": {"0": 4}}') == [("a", 0, 0, 4), ("a", 1, 5, 9)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"startingOffsets": '{"a": {"0": 11}}'}, "startingOffsets: 11 is beyond the end"),
        ({"endingOffsets": '{"a": {"0": 11}}'}, "endingOffsets: 11 is beyond"),
        ({"startingOffsets": '{"a": {"7": 1}}'}, "no queue 7; there are .0, 1."),
        ({"startingOffsets": '{"c": {"0": 1}}'}, "'c' is not read"),
        ({"startingOffsets": '{"a": {"b1": {"0": 5}, "b2": {"0": 6}}}'}, "two brokers; a store is one broker's"),
        ({"startingOffsets": "latest"}, "cannot start at latest"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "cannot start at latest"),
        ({"endingOffsets": "earliest"}, "cannot end at earliest"),
    ],
)
def test_offsets_that_do_not_fit(options: dict[str, str], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        ranges(**options)


def test_expired_offsets(caplog: pytest.LogCaptureFixture) -> None:
    start = '{"a": {"1": 2}}'
    with pytest.raises(DataLoss, match=r"2 in queue 1 of 'a' has expired.*failOnDataLoss=false"):
        ranges(startingOffsets=start)
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        assert ranges(startingOffsets=start, failOnDataLoss="false")[1] == ("a", 1, 5, 9)
    assert "has expired" in caplog.text


def test_a_stream_begins_at_the_end() -> None:
    options = ReadOptions.of(OptionMap({"path": "/s", "topic": "a"}))
    queues = selected_queues(CLUSTER, {"a": None})
    assert starting_position(CLUSTER, queues, options) == {QueueKey("a", 0): 10, QueueKey("a", 1): 9}


class Brokers(Cluster):
    """The same at two brokers; only the second has a queue 1."""

    def ends(self, topic: str) -> dict[QueueKey, Ends]:
        found = {QueueKey(topic, queue, name): Ends(0, 9) for name in ("b1", "b2") for queue in (0, 1)}
        del found[QueueKey(topic, 1, "b1")]
        return found


def at_brokers(start: str) -> dict[str, int]:
    catalog = Brokers(a={})
    options = ReadOptions.of(OptionMap({"nameServer": "h:1", "topic": "a", "startingOffsets": start}))
    found = batch_ranges(catalog, selected_queues(catalog, {"a": None}), options)
    return {str(one.key): one.start for one in found}


def test_a_queue_is_named_with_its_broker_where_several_have_it() -> None:
    assert at_brokers('{"a": {"b1": {"0": 5}}}') == {"a/b1/0": 5, "a/b2/0": 0, "a/b2/1": 0}
    assert at_brokers('{"a": {"1": 7, "b2": {"0": 2}}}') == {"a/b1/0": 0, "a/b2/0": 2, "a/b2/1": 7}


@pytest.mark.parametrize(
    ("start", "match"),
    [
        ('{"a": {"0": 5}}', r"'a' has a queue 0 at each of b1, b2: say which, as in {\"a\": {\"b1\": {\"0\": 0}}}"),
        ('{"a": {"b1": {"1": 5}}}', r"no queue 1 at b1; there are \['b1/0', 'b2/0', 'b2/1'\]"),
        ('{"a": {"b3": {"0": 5}}}', "no queue 0 at b3"),
        ('{"a": {"1": 5, "b2": {"1": 5}}}', "queue 1 of 'a' stands under two brokers$"),
    ],
)
def test_queues_of_brokers_that_do_not_fit(start: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        at_brokers(start)


# --- Which topics


def test_subscriptions() -> None:
    assert selected_topics(CLUSTER, Subscription(pattern="[ab]")) == {"a": None, "b": None}
    assert selected_topics(CLUSTER, Subscription(pattern=".*")) == {"a": None, "b": None}
    assert selected_topics(CLUSTER, Subscription(topics=("SCHEDULE_TOPIC_XXXX",))) == {"SCHEDULE_TOPIC_XXXX": None}
    assigned = selected_topics(CLUSTER, Subscription(assigned='{"a": [1]}'))
    assert list(selected_queues(CLUSTER, assigned)) == [QueueKey("a", 1)]


@pytest.mark.parametrize(
    ("subscription", "match"),
    [
        (Subscription(topics=("a", "x")), "topic: there is no topic 'x'; known topics: a, b"),
        (Subscription(pattern="a."), "subscribePattern: 'a.' matches no topic; known topics: a, b"),
        (Subscription(assigned='{"x": [0]}'), "assign: there is no topic 'x'"),
    ],
)
def test_unknown_topics(subscription: Subscription, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        selected_topics(CLUSTER, subscription)


def test_unknown_queues() -> None:
    with pytest.raises(OptionError, match=r"has no queue 4; there are \[0, 1\]"):
        selected_queues(CLUSTER, {"a": frozenset((0, 4))})
    assert list(selected_queues(CLUSTER, {"a": frozenset((0, 4))}, strict=False)) == [QueueKey("a", 0)]


class Growing(Cluster):
    """A queue that gets messages between the look at its ends and the look-up of a time."""

    def offset_at(self, key: QueueKey, time_ms: int) -> int:
        return self.queues[key.topic][key.queue_id][1] + 3


@pytest.mark.parametrize("side", ["ending", "starting"])
def test_a_time_at_the_live_end_is_within_the_ends_that_were_looked_up(side: str) -> None:
    """24 of 73 batches with an endingTimestamp in the future failed as "beyond the end"."""
    busy = Growing(a={0: (0, 10)})
    options = ReadOptions.of(OptionMap({"path": "/s", "topic": "a", f"{side}Timestamp": "4000000000000"}))
    queues = selected_queues(busy, selected_topics(busy, options.subscription))
    (one,) = batch_ranges(busy, queues, options)
    assert (one.start, one.end) == ((0, 10) if side == "ending" else (10, 10))
    by_queue = {f"{side}OffsetsByTimestamp": '{"a": {"0": 4000000000000}}'}
    options = ReadOptions.of(OptionMap({"path": "/s", "topic": "a", **by_queue}))
    (one,) = batch_ranges(busy, queues, options)
    assert (one.start, one.end) == ((0, 10) if side == "ending" else (10, 10))
