"""Checks: groups with their retry policies, delay offsets, and the files that are kept as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.errors import DiskFull, InvalidArgument
from cometmq.store_config.delay_offsets import DelayOffsets
from cometmq.store_config.documents import Document
from cometmq.store_config.fastjson import JsonObject, JsonValue, dumps, loads
from cometmq.store_config.file_ops import SystemFileOps
from cometmq.store_config.subscription_group_config import (
    DEFAULT_RETRY_DELAYS_MS,
    ExponentialRetry,
    RetryPolicy,
    SimpleSubscription,
    SubscriptionGroupConfig,
)
from cometmq.store_config.subscription_groups import SYSTEM_GROUPS, SubscriptionGroups

GROUP_FILE = """{
	"dataVersion":{
		"counter":4,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"forbiddenTable":{
		"g":{
			"t":1
		}
	},
	"subscriptionGroupTable":{
		"g":{
			"attributes":{},
			"brokerId":0,
			"consumeBroadcastEnable":true,
			"consumeEnable":true,
			"consumeFromMinEnable":true,
			"consumeMessageOrderly":false,
			"consumeTimeoutMinute":15,
			"future":{
				"x":1
			},
			"groupName":"g",
			"groupRetryPolicy":{
				"exponentialRetryPolicy":{
					"initial":5000,
					"max":7200000,
					"multiplier":2
				},
				"type":"EXPONENTIAL"
			},
			"groupSysFlag":0,
			"notifyConsumerIdsChangedEnable":true,
			"retryMaxTimes":16,
			"retryQueueNums":1,
			"subscriptionDataSet":[{
				"expression":"a || b",
				"expressionType":"TAG",
				"topic":"t",
				"version":3
			}],
			"whichBrokerWhenConsumeSlowly":1
		}
	}
}"""


def groups_of(folder: Path, text: str) -> SubscriptionGroups:
    folder.joinpath("subscriptionGroup.json").write_text(text, encoding="utf-8")
    groups = SubscriptionGroups(folder)
    groups.load()
    return groups


def test_the_group_file_passes_through(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, GROUP_FILE)
    assert dumps(groups.encode()) == GROUP_FILE
    group = groups.get("g")
    assert group is not None
    assert group.group_retry_policy.exponential == ExponentialRetry()
    assert group.subscription_data_set == (
        SimpleSubscription(topic="t", expression_type="TAG", expression="a || b", version=3),
    )
    assert groups.forbidden_mask("g", "t") == 1
    groups.put(replace(group, retry_max_times=3))
    changed = groups.encode()["subscriptionGroupTable"]
    assert isinstance(changed, dict)
    assert changed["g"] == {**loads_group(), "retryMaxTimes": 3}


def loads_group() -> JsonObject:
    value: JsonValue = loads(GROUP_FILE)
    assert isinstance(value, dict)
    table = value["subscriptionGroupTable"]
    assert isinstance(table, dict)
    group = table["g"]
    assert isinstance(group, dict)
    return group


def test_groups(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path, system=SYSTEM_GROUPS, light_queues=True)
    assert len(groups) == 8
    made = groups.get_or_create("mine")
    assert made == SubscriptionGroupConfig(group_name="mine")
    assert groups.get_or_create("mine") is made
    assert groups.get("%LMQ%x") == SubscriptionGroupConfig(group_name="%LMQ%x")
    assert "nobody" not in groups
    for name in ("a b", "x" * 249, "%LMQ%x"):
        with pytest.raises(InvalidArgument):
            groups.put(SubscriptionGroupConfig(group_name=name))
    groups.persist()
    again = SubscriptionGroups(tmp_path)
    again.load()
    assert again.all() == groups.all()
    assert again.remove("mine") == made
    assert again.remove("mine") is None
    assert again.data_version.counter == 2


def test_forbidden_actions(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path)
    groups.set_forbidden("g", "t", 0, forbidden=True)
    groups.set_forbidden("g", "t", 30, forbidden=True)
    groups.set_forbidden("g", "u", 1, forbidden=True)
    assert groups.forbidden_mask("g", "t") == 1 | 1 << 30
    before = groups.data_version
    groups.set_forbidden("g", "t", 0, forbidden=True)
    assert groups.data_version == before
    for bit in (0, 30):
        groups.set_forbidden("g", "t", bit, forbidden=False)
    assert groups.forbidden_mask("g", "t") == 0
    assert groups.encode()["forbiddenTable"] == {"g": {"u": 2}}
    groups.remove("g")
    assert groups.encode()["forbiddenTable"] == {}
    with pytest.raises(InvalidArgument):
        groups.set_forbidden("g", "t", 31, forbidden=True)


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryPolicy(), {0: 10_000, 1: 30_000, 15: 7_200_000, 99: 7_200_000, -1: 10_000}),
        (RetryPolicy(customized_ms=(1, 2, 3, 4)), {0: 3, 1: 4, 2: 4}),
        (RetryPolicy(type="EXPONENTIAL", exponential=ExponentialRetry()), {0: 5_000, 3: 40_000, 99: 7_200_000}),
        (RetryPolicy(type="EXPONENTIAL"), {0: 10_000}),
        (RetryPolicy(type="LINEAR", customized_ms=(1, 2, 3)), {0: 10_000}),
    ],
)
def test_retry_delays(policy: RetryPolicy, delays: dict[int, int]) -> None:
    assert {times: policy.delay_ms(times) for times in delays} == delays


def test_a_customized_policy_passes_through(tmp_path: Path) -> None:
    text = "{subscriptionGroupTable:{g:{groupRetryPolicy:{type:'CUSTOMIZED',customizedRetryPolicy:{next:[1,2]}},h:{}}}}"
    group = groups_of(tmp_path, text).get("g")
    assert group is not None
    assert group.group_retry_policy.customized_ms == (1, 2)
    assert group.encode()["groupRetryPolicy"] == {"customizedRetryPolicy": {"next": [1, 2]}, "type": "CUSTOMIZED"}
    text = "{subscriptionGroupTable:{g:{groupRetryPolicy:{customizedRetryPolicy:{}}}}}"
    group = groups_of(tmp_path, text).get("g")
    assert group is not None
    assert group.group_retry_policy.customized_ms == DEFAULT_RETRY_DELAYS_MS


def test_delay_offsets(tmp_path: Path) -> None:
    offsets = DelayOffsets(tmp_path, version_step=2, now_ms=lambda: 9)
    offsets.set(1, 23)
    offsets.set(3, 5)
    assert offsets.persist()
    expected = (
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":9\n\t},\n'
        '\t"offsetTable":{1:23,3:5\n\t}\n}'
    )
    assert (tmp_path / "delayOffset.json").read_text() == expected
    again = DelayOffsets(tmp_path)
    again.load()
    assert again.all() == {1: 23, 3: 5}
    assert again.get(2) is None
    for level, offset in ((0, 1), (1, -1), (1, 2**63)):
        with pytest.raises(InvalidArgument):
            again.set(level, offset)


FILTERS = (
    '{\n\t"filterDataByTopic":{\n\t\t"T":{\n\t\t\t"groupFilterData":{\n\t\t\t\t"g":{\n\t\t\t\t\t"bloomFilterData":{\n'
    '\t\t\t\t\t\t"bitNum":112,\n\t\t\t\t\t\t"bitPos":[79,5,68]\n\t\t\t\t\t},\n\t\t\t\t\t"dead":false\n\t\t\t\t}\n'
    '\t\t\t},\n\t\t\t"topic":"T"\n\t\t}\n\t}\n}'
)


def test_a_document_is_changed_without_losing_anything(tmp_path: Path) -> None:
    (tmp_path / "consumerFilter.json").write_text(FILTERS)
    document = Document(tmp_path, "consumerFilter.json")
    document.load()

    def add(content: JsonObject) -> None:
        content["added"] = 1

    def fail(content: JsonObject) -> None:
        content.clear()
        raise LookupError

    with pytest.raises(LookupError):
        document.update(fail)
    assert not document.changed
    document.update(add)
    document.persist()
    written = (tmp_path / "consumerFilter.json").read_text()
    assert written == FILTERS[:-2] + ',\n\t"added":1\n}'
    document.encode().clear()
    assert document.encode() == loads(written)
    document.replace({})
    document.persist()
    assert (tmp_path / "consumerFilter.json").read_text() == "{}"


def test_metrics_are_compact_ascii(tmp_path: Path) -> None:
    document = Document(tmp_path, "timermetrics")
    document.replace({"timingCount": {"订单/a": {"count": -1, "timeStamp": 5}}})
    document.persist()
    expected = b'{"timingCount":{"\\u8BA2\\u5355\\/a":{"count":-1,"timeStamp":5}}}'
    assert (tmp_path / "timermetrics").read_bytes() == expected


def test_other_names_are_no_documents(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"topics\.json"):
        Document(tmp_path, "topics.json")


def test_a_failed_persist_keeps_the_change(tmp_path: Path) -> None:
    class Full(SystemFileOps):
        full = True

        def write_synced(self, path: Path, data: bytes) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().write_synced(path, data)

    ops = Full()
    offsets = DelayOffsets(tmp_path, file_ops=ops)
    offsets.set(1, 1)
    with pytest.raises(DiskFull, match="No space left"):
        offsets.persist()
    assert offsets.changed
    ops.full = False
    assert offsets.persist()


def test_backup_content_is_written_as_the_main_file(tmp_path: Path) -> None:
    offsets = DelayOffsets(tmp_path)
    offsets.set(1, 1)
    offsets.persist()
    main = tmp_path / "delayOffset.json"
    main.rename(tmp_path / "delayOffset.json.bak")
    again = DelayOffsets(tmp_path)
    assert again.load().warning == f"{main} is missing; its .bak was used"
    assert again.changed
    assert again.persist()
    assert main.read_bytes() == (tmp_path / "delayOffset.json.bak").read_bytes()


def test_delay_progress_collected_elsewhere_is_taken_over(tmp_path: Path) -> None:
    delays = DelayOffsets(tmp_path)
    delays.merge({1: 5, 18: 7}, versions=2)
    assert delays.all() == {1: 5, 18: 7}
    assert delays.data_version.counter == 2
    assert delays.persist()
    delays.merge({1: 5}, versions=0)
    assert not delays.changed, "nothing new is no change"
    with pytest.raises(InvalidArgument):
        delays.merge({2: 1, 0: 1}, versions=0)
    assert delays.get(2) is None, "all or nothing"


def test_forbidden_topics_can_be_listed(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path)
    groups.set_forbidden("g", "t", 0, forbidden=True)
    groups.set_forbidden("g", "u", 3, forbidden=True)
    assert groups.forbidden_topics("g", 0) == ("t",)
    assert groups.forbidden_topics("h", 0) == ()
    assert groups.forbidden_table() == {"g": {"t": 1, "u": 8}}


def test_a_touch_makes_a_new_version(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path)
    before = groups.data_version
    groups.touch()
    assert groups.data_version.counter == before.counter + 1
    assert groups.changed
