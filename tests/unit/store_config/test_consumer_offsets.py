"""Checks: progress of groups as upstream keeps it: keys with one and two '@', derived members, light queues."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from cometmq.errors import InvalidArgument
from cometmq.store_config.consumer_offsets import BROADCAST_SUFFIX, ConsumerOffsets, LightQueueOffsets, offset_key
from cometmq.store_config.errors import ConfigError
from cometmq.store_config.fastjson import loads

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)

FILE = """{
	"dataVersion":{
		"counter":0,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"future":"kept",
	"groupTopicMap":{
		"g":["t"]
	},
	"offsetTable":{
		"t@g":{0:5,3:7
		},
		"t@g@broadcast":{0:9
		}
	}
}"""


def offsets_of(folder: Path, text: str) -> ConsumerOffsets:
    folder.joinpath("consumerOffset.json").write_text(text, encoding="utf-8")
    offsets = ConsumerOffsets(folder, now_ms=lambda: 77)
    offsets.load()
    return offsets


def test_commit_and_get(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)
    assert offsets.get("g", "t", 0) is None
    assert offsets.commit("g", "t", 0, 5) is None
    assert offsets.commit("g", "t", 0, 3) == 5, "going back is allowed"
    assert offsets.commit("g", "t", 2**31 - 1, 2**63 - 1) is None
    assert offsets.get("g", "t", 0) == 3
    assert offsets.queues("g", "t") == {0: 3, 2**31 - 1: 2**63 - 1}
    assert offsets.persist()
    again = ConsumerOffsets(tmp_path)
    again.load()
    assert again.queues("g", "t") == {0: 3, 2**31 - 1: 2**63 - 1}


def test_the_file_passes_through_unchanged(tmp_path: Path) -> None:
    offsets = offsets_of(tmp_path, FILE)
    assert not offsets.changed
    offsets.persist(only_if_changed=False)
    assert (tmp_path / "consumerOffset.json").read_text("utf-8") == FILE


def test_keys_with_two_signs_are_kept_and_belong_to_no_group(tmp_path: Path) -> None:
    offsets = offsets_of(tmp_path, FILE)
    assert offsets.by_key(offset_key("g", "t") + BROADCAST_SUFFIX) == {0: 9}
    assert offsets.topics_of("g") == ("t",)
    assert offsets.groups_of("t") == ("g",)
    assert offsets.remove_group("g") == 1
    assert offsets.keys() == ("t@g@broadcast",)
    assert offsets.encode()["groupTopicMap"] == {}


def test_the_derived_map_is_made_new_from_the_keys(tmp_path: Path) -> None:
    text = "{groupTopicMap:{stale:['x']},offsetTable:{'t@g':{'0':1},'t@':{0:1},'@h':{0:2},'a@b@':{0:3},x:{0:4}}}"
    offsets = offsets_of(tmp_path, text)
    assert offsets.encode()["groupTopicMap"] == {"g": ["t"], "h": [""], "b": ["a"]}
    assert offsets.get("g", "t", 0) == 1, "a quoted queue id is a queue id"
    assert set(offsets.keys()) == {"t@g", "t@", "@h", "a@b@", "x"}


def test_the_version_counts_every_so_many_commits(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path, version_step=3, now_ms=lambda: 5)
    for number in range(7):
        offsets.commit("g", "t", 0, number)
    assert offsets.data_version.counter == 2


def test_remove_and_clone(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)
    for group in ("a", "b"):
        for topic in ("x", "y"):
            offsets.commit(group, topic, 0, 1)
    assert offsets.clone("a", "c", "x")
    assert not offsets.clone("nobody", "c", "x")
    offsets.commit("c", "x", 0, 9)
    assert offsets.get("a", "x", 0) == 1
    assert offsets.remove_topic("x") == 3
    assert offsets.remove_group("b") == 1
    assert offsets.keys() == ("y@a",)
    assert offsets.remove_group("b") == 0


@pytest.mark.parametrize(
    ("group", "topic", "queue_id", "offset"),
    [
        ("", "t", 0, 0),
        ("g", "", 0, 0),
        ("g@x", "t", 0, 0),
        ("g", "t@x", 0, 0),
        ("g", "t", -1, 0),
        ("g", "t", 2**31, 0),
        ("g", "t", 0, -1),
        ("g", "t", 0, 2**63),
    ],
)
def test_commits_refused(tmp_path: Path, group: str, topic: str, queue_id: int, offset: int) -> None:
    for offsets in (ConsumerOffsets(tmp_path), LightQueueOffsets(tmp_path)):
        with pytest.raises(InvalidArgument):
            offsets.commit(group, topic, queue_id, offset)
        assert not offsets.changed


@pytest.mark.parametrize(
    "text",
    [
        "{offsetTable:{'t@g':{x:1}}}",
        "{offsetTable:{'t@g':{0:9223372036854775808}}}",
        "{offsetTable:{'t@g':{2147483648:1}}}",
        "{offsetTable:{'t@g':{0:[]}}}",
        "{offsetTable:{'t@g':7}}",
        "{offsetTable:[]}",
    ],
)
def test_bad_tables_are_errors_that_leave_the_content(tmp_path: Path, text: str) -> None:
    offsets = offsets_of(tmp_path, FILE)
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="offsetTable"):
        offsets.load()
    assert offsets.get("g", "t", 3) == 7


def test_upstreams_minus_one_is_kept(tmp_path: Path) -> None:
    assert offsets_of(tmp_path, "{offsetTable:{'t@g':{0:-1}}}").get("g", "t", 0) == -1


def test_light_queues(tmp_path: Path) -> None:
    offsets = LightQueueOffsets(tmp_path)
    offsets.commit("%LMQ%g", "t", 0, 4)
    offsets.commit("g", "t", 1, 6)
    assert offsets.get("%LMQ%g", "t", 0) == 4
    assert offsets.queues("%LMQ%g", "t") == {0: 4}
    assert offsets.queues("%LMQ%h", "t") == {}
    assert offsets.queues("g", "t") == {1: 6}
    offsets.persist()
    text = (tmp_path / "lmqConsumerOffset.json").read_bytes()
    content = loads(text)
    assert isinstance(content, dict)
    assert content["lmqOffsetTable"] == {"t@%LMQ%g": 4}
    assert content["offsetTable"] == {"t@g": {1: 6}}
    assert not (tmp_path / "consumerOffset.json").exists()
    again = LightQueueOffsets(tmp_path)
    again.load()
    assert again.light_table == {"t@%LMQ%g": 4}
    assert again.remove_group("%LMQ%g") == 1
    assert again.light_table == {}


def test_random_commits_against_a_dict(tmp_path: Path) -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    offsets, model = ConsumerOffsets(tmp_path), dict[tuple[str, str, int], int]()
    for _ in range(2000):
        key = (f"g{rng.randrange(6)}", f"t{rng.randrange(6)}", rng.randrange(8))
        action = rng.randrange(20)
        if action == 0:
            offsets.persist()
            offsets = ConsumerOffsets(tmp_path)
            offsets.load()
        elif action == 1:
            offsets.remove_group(key[0])
            model = {other: offset for other, offset in model.items() if other[0] != key[0]}
        elif action == 2:
            offsets.remove_topic(key[1])
            model = {other: offset for other, offset in model.items() if other[1] != key[1]}
        else:
            model[key] = rng.randrange(10**12)
            offsets.commit(*key, model[key])
        assert offsets.get(*key) == model.get(key)
    for key, offset in model.items():
        assert offsets.get(*key) == offset
    assert sum(len(offsets.by_key(key)) for key in sorted(offsets.keys())) == len(model)


def test_threads_commit_while_another_persists(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path)

    def commit(group: str) -> None:
        for number in range(1, 301):
            offsets.commit(group, "t", number % 4, number)

    threads = [threading.Thread(target=commit, args=(f"g{index}",)) for index in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        offsets.persist(only_if_changed=False)
    for thread in threads:
        thread.join()
    offsets.persist()
    again = ConsumerOffsets(tmp_path)
    again.load()
    for index in range(3):
        assert again.queues(f"g{index}", "t") == {0: 300, 1: 297, 2: 298, 3: 299}


def test_progress_collected_elsewhere_is_taken_over(tmp_path: Path) -> None:
    offsets = offsets_of(tmp_path, FILE)
    offsets.merge([("g", "t", 0, 9), ("h", "u", 2, 4), ("h", "v", 0, 1), ("h", "v", -1, 0)], versions=0)
    assert offsets.all() == [("g", "t", 0, 9), ("g", "t", 3, 7), ("h", "u", 2, 4)]
    assert offsets.changed
    assert offsets.data_version.counter == 0
    offsets.merge([], versions=3)
    assert offsets.data_version.counter == 3
    with pytest.raises(InvalidArgument, match="offset -2"):
        offsets.merge([("g", "t", 1, 6), ("g", "t", 1, -2)], versions=0)
    assert offsets.get("g", "t", 1) == 6, "entries before the bad one are taken over"
    assert offsets.by_key("t@g@broadcast") == {0: 9}


def test_light_queues_are_merged_into_their_own_table(tmp_path: Path) -> None:
    offsets = LightQueueOffsets(tmp_path)
    offsets.merge([("%LMQ%g", "%LMQ%t", 0, 5), ("g", "t", 1, 6)], versions=0)
    assert offsets.light_table == {"%LMQ%t@%LMQ%g": 5}
    assert sorted(offsets.all()) == [("%LMQ%g", "%LMQ%t", 0, 5), ("g", "t", 1, 6)]
    offsets.merge([("%LMQ%g", "%LMQ%t", -1, 0)], versions=0)
    assert offsets.light_table == {}
