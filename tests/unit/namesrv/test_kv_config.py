"""Checks: keys are kept as upstream's name server keeps them, on disk before they are answered, and within limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.errors import LimitReached, StorageError
from cometmq.namesrv.kv_config import KVConfig, KVLimits
from cometmq.store_config.config_file import Origin
from cometmq.store_config.errors import ConfigError

# Written by a name server of 5.3.3.
CAPTURED = '{"configTable":{"ORDER_TOPIC_CONFIG":{"Roll":"broker-a:2"}}}'


def test_upstream_s_file_is_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text(CAPTURED)
    keys = KVConfig(tmp_path / "kvConfig.json")
    assert keys.load().origin is Origin.MAIN
    assert keys.get("ORDER_TOPIC_CONFIG", "Roll") == "broker-a:2"
    keys.put("ORDER_TOPIC_CONFIG", "Roll", "broker-a:4")
    keys.put("other", "k", "v")
    expected = '{"configTable":{"ORDER_TOPIC_CONFIG":{"Roll":"broker-a:4"},"other":{"k":"v"}}}'
    assert (tmp_path / "kvConfig.json").read_text() == expected
    again = KVConfig(tmp_path / "kvConfig.json")
    again.load()
    assert again.namespace("other") == {"k": "v"}


def test_a_namespace_outlives_its_keys() -> None:
    keys = KVConfig(None)
    assert keys.namespace("n") is None
    keys.put("n", "k", "v")
    keys.delete("n", "k")
    keys.delete("n", "k")
    keys.delete("nowhere", "k")
    assert keys.namespace("n") == {}
    assert keys.namespace("nowhere") is None
    assert keys.get("n", "k") is None


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    KVConfig(None).put("n", "k", "v")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_the_file_are_made(tmp_path: Path) -> None:
    path = tmp_path / "some" / "new" / "folder" / "kvConfig.json"
    config = KVConfig(path)
    config.put("n", "k", "v")
    assert path.exists()


def test_moved_folder_is_not_created_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = KVConfig(tmp_path / "data" / "namesrv" / "kvConfig.json")
    (tmp_path / "data").rename(tmp_path / "away")
    with pytest.raises(StorageError, match="was moved or deleted"):
        config.put("n", "k", "v")
    assert not (tmp_path / "data").exists()


def test_a_damaged_file_is_an_error_and_its_copy_is_used(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text('{"configTable":{"n":"no object"}}')
    assert KVConfig(tmp_path / "kvConfig.json").load().origin is Origin.NONE
    (tmp_path / "kvConfig.json.bak").write_text(CAPTURED)
    keys = KVConfig(tmp_path / "kvConfig.json")
    assert keys.load().origin is Origin.BACKUP
    assert keys.namespace("ORDER_TOPIC_CONFIG") == {"Roll": "broker-a:2"}
    (tmp_path / "kvConfig.json.bak").write_text("{")
    with pytest.raises(ConfigError):
        KVConfig(tmp_path / "kvConfig.json").load()


def test_limits() -> None:
    keys = KVConfig(None, limits=KVLimits(entries=3, name_chars=5, value_chars=4))
    keys.put("n", "a", "1")
    keys.put("n", "b", "2")
    with pytest.raises(LimitReached, match="3 keys"):
        keys.put("n", "c", "3")
    keys.put("n", "a", "9")
    with pytest.raises(LimitReached, match="5 characters"):
        keys.put("n", "toolong", "3")
    with pytest.raises(LimitReached, match="4 characters"):
        keys.put("n", "a", "12345")
    assert keys.namespace("n") == {"a": "9", "b": "2"}


def test_all_keys_and_values_together_have_a_limit() -> None:
    keys = KVConfig(None, limits=KVLimits(total_chars=10))
    keys.put("n", "a", "12345678")
    with pytest.raises(LimitReached, match="10 characters"):
        keys.put("n", "b", "1")
    keys.put("n", "a", "123456")
    keys.delete("n", "a")
    keys.put("n", "b", "12345678")
    assert keys.namespace("n") == {"b": "12345678"}
