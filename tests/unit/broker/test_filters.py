"""SQL92 filters of groups: registered by versions, dead and alive again, and written as upstream writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.broker import filters as broker_filters
from cometmq.broker.filters import BrokerFilters
from cometmq.remoting.bodies.heartbeat import SubscriptionData

DAY_MS = 86_400_000


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(folder: Path, clock: Clock) -> BrokerFilters:
    return BrokerFilters(folder, error_percent=20, groups_expected=32, clean_ms=lambda: DAY_MS, now_ms=clock)


@pytest.fixture
def filters(tmp_path: Path, clock: Clock) -> BrokerFilters:
    return made(tmp_path, clock)


def by_sql(expression: str, version: int, topic: str = "TopicTest", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=kind)


def written(folder: Path) -> dict[str, dict[str, object]]:
    topics = json.loads((folder / "consumerFilter.json").read_text())["filterDataByTopic"]
    return {topic: data["groupFilterData"] for topic, data in topics.items()}


def test_newer_versions_replace_a_filter(filters: BrokerFilters) -> None:
    assert filters.register("g", [by_sql("a > 5", 10)])
    assert filters.selector("TopicTest", "g") == ("a > 5", 10)
    assert not filters.register("g", [by_sql("a > 6", 10)]), "a changed expression of an old version is ignored"
    assert filters.selector("TopicTest", "g") == ("a > 5", 10)
    assert filters.register("g", [by_sql("a > 5", 11)])
    assert filters.register("g", [by_sql("a > 6", 12)])
    assert filters.selector("TopicTest", "g") == ("a > 6", 12)


def test_expression_that_does_not_compile_removes_the_filter(filters: BrokerFilters) -> None:
    filters.register("g", [by_sql("a > 5", 10)])
    assert filters.register("g", [by_sql("a > 'x'", 11)])
    assert filters.selector("TopicTest", "g") is None
    assert not filters.register("g", [by_sql("a > 'x'", 12)])
    assert not filters.register("g", [by_sql("a > 5", 13, kind="CLASS")]), "a kind that nobody knows"
    assert not filters.register("g", [by_sql("*", 14, kind="TAG"), by_sql("", 14, topic="other")])


def test_filters_die_and_live_again(filters: BrokerFilters, tmp_path: Path, clock: Clock) -> None:
    filters.register("g", [by_sql("a > 5", 10), by_sql("b = 1", 10, topic="U")])
    clock.ms += 5
    filters.register("g", [by_sql("a > 5", 10)])
    filters.persist()
    assert [written(tmp_path)[topic]["g"]["dead"] for topic in ("TopicTest", "U")] == [False, True]  # type: ignore[index]
    assert filters.selector("U", "g") == ("b = 1", 10), "a dead filter still serves"
    filters.unregister("g")
    assert filters.register("g", [by_sql("a > 5", 10)]), "the same version brings it back"
    filters.persist()
    assert written(tmp_path)["TopicTest"]["g"]["dead"] is False  # type: ignore[index]


def test_dead_filters_are_forgotten_after_a_day(filters: BrokerFilters, tmp_path: Path, clock: Clock) -> None:
    filters.register("g", [by_sql("a > 5", 10)])
    filters.unregister("g")
    clock.ms += DAY_MS - 1
    filters.persist()
    assert "TopicTest" in written(tmp_path)
    clock.ms += 1
    filters.persist()
    assert written(tmp_path) == {}


def test_file_is_that_of_upstream(filters: BrokerFilters, tmp_path: Path, clock: Clock) -> None:
    filters.register("group1", [by_sql("a > 5", 1_700_000_000_123)])
    filters.persist()
    assert (tmp_path / "consumerFilter.json").read_text() == (
        '{\n\t"filterDataByTopic":{\n\t\t"TopicTest":{\n\t\t\t"groupFilterData":{\n\t\t\t\t"group1":{\n'
        '\t\t\t\t\t"bloomFilterData":{\n\t\t\t\t\t\t"bitNum":112,\n\t\t\t\t\t\t"bitPos":[79,5,68]\n\t\t\t\t\t},\n'
        '\t\t\t\t\t"bornTime":1700000000000,\n\t\t\t\t\t"clientVersion":1700000000123,\n'
        '\t\t\t\t\t"consumerGroup":"group1",\n\t\t\t\t\t"dead":false,\n\t\t\t\t\t"deadTime":0,\n'
        '\t\t\t\t\t"expression":"a > 5",\n\t\t\t\t\t"expressionType":"SQL92",\n\t\t\t\t\t"topic":"TopicTest"\n'
        '\t\t\t\t}\n\t\t\t},\n\t\t\t"topic":"TopicTest"\n\t\t}\n\t}\n}'
    )
    clock.ms += 60_000
    again = made(tmp_path, clock)
    assert again.selector("TopicTest", "group1") == ("a > 5", 1_700_000_000_123)
    again.persist()
    assert written(tmp_path)["TopicTest"]["group1"]["deadTime"] == clock.ms - 30_000  # type: ignore[index]


def test_file_of_other_bloom_settings_is_dropped(filters: BrokerFilters, tmp_path: Path, clock: Clock) -> None:
    filters.register("g", [by_sql("a > 5", 10)])
    filters.persist()
    other = BrokerFilters(tmp_path, error_percent=1, groups_expected=32, clean_ms=lambda: DAY_MS, now_ms=clock)
    assert other.selector("TopicTest", "g") is None


def test_monstrous_expressions_make_no_filter_and_harm_no_other(filters: BrokerFilters) -> None:
    filters.register("good", [by_sql("a > 5", 10)])
    for version, monster in enumerate(["(" * 100_000, "NOT " * 15_000 + "TRUE", "a = 1 AND " * 6_000, "'" * 65_001]):
        filters.register("bad", [by_sql(monster, 10 + version)])
        assert filters.selector("TopicTest", "bad") is None
    many = " OR ".join(f"a = '{n}'" for n in range(4_000))
    filters.register("long", [by_sql(many, 10)])
    assert filters.selector("TopicTest", "long") == (many, 10)
    assert filters.selector("TopicTest", "good") == ("a > 5", 10)


def test_expressions_have_a_limit(
    filters: BrokerFilters, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters without members make room, the longest dead first; one with members never goes for another group's."""
    monkeypatch.setattr(broker_filters, "EXPRESSION_CHARS_MAX", 15)
    for number, group in enumerate(("first", "second", "third")):
        clock.ms += 1_000
        filters.register(group, [by_sql(f"a > {number}", 10)])
    filters.register("fourth", [by_sql("a > 4", 10)])
    assert filters.selector("TopicTest", "fourth") is None, "all others have members"
    filters.unregister("second")
    clock.ms += 1_000
    filters.unregister("first")
    filters.register("fourth", [by_sql("a > 4", 11)])
    assert filters.selector("TopicTest", "fourth") == ("a > 4", 11)
    assert filters.selector("TopicTest", "second") is None
    assert filters.selector("TopicTest", "first") == ("a > 0", 10)
    filters.register("first", [by_sql("a > 99", 11)])
    assert filters.selector("TopicTest", "first") is None, "a longer one of the same group has no room either"
    filters.register("first", [by_sql("a > 1", 12)])
    filters.persist()
    again = made(tmp_path, clock)
    again.register("fifth", [by_sql("a > 55555", 10)])
    assert again.selector("TopicTest", "fifth") == ("a > 55555", 10), "the file's filters are counted, and are dead"


def test_filter_that_lives_again_while_the_file_is_written_stays(
    filters: BrokerFilters, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop revives the filter between the look at its age and its removal."""
    filters.register("g", [by_sql("a > 5", 10)])
    filters.unregister("g")
    clock.ms += DAY_MS

    def revive() -> int:
        monkeypatch.undo()
        filters.register("g", [by_sql("a > 5", 11)])
        return DAY_MS

    monkeypatch.setattr(filters, "_clean_ms", revive)
    filters.persist()
    assert filters.selector("TopicTest", "g") == ("a > 5", 11)


def test_version_far_in_the_future_keeps_no_other_expression_away(filters: BrokerFilters, clock: Clock) -> None:
    now = clock.ms
    filters.register("g", [by_sql("a > 5", 2**62)])
    assert not filters.register("g", [by_sql("a > 5", now)]), "the same expression"
    assert filters.selector("TopicTest", "g") == ("a > 5", 2**62)
    assert filters.register("g", [by_sql("a > 6", now)])
    assert filters.selector("TopicTest", "g") == ("a > 6", now)
    assert filters.register("g", [by_sql("a > 7", now + 3_600_000)]), "the clock of a client is an hour ahead"
    assert not filters.register("g", [by_sql("a > 8", now + 60_000)])
    assert filters.selector("TopicTest", "g") == ("a > 7", now + 3_600_000)
