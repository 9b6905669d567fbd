"""Checks: a name server's settings come from upstream's file, from cometmq.toml and from flags, and are all checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.errors import StorageError
from cometmq.namesrv.settings import NamesrvSettings, load_namesrv_settings, properties_text, with_updates
from cometmq.store_config.errors import SettingError, UnknownSetting
from cometmq.store_config.setting_sources import from_environment, from_toml


def test_defaults_are_upstream_s_but_for_the_address() -> None:
    settings = load_namesrv_settings()
    assert settings == NamesrvSettings()
    assert (settings.bind_address, settings.listen_port) == ("127.0.0.1", 9876)


def test_upstream_s_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text("listenPort=9999\norderMessageEnable=true\nserverWorkerThreads=8\nkvConfigPath=/var/lib/kv.json\n")
    settings = load_namesrv_settings(path, overrides={"listen_port": 0})
    assert settings == NamesrvSettings(listen_port=0, order_message_enable=True, kv_config_path="/var/lib/kv.json")


def test_a_table_of_cometmq_toml(tmp_path: Path) -> None:
    path = tmp_path / "cometmq.toml"
    path.write_text(
        '[broker]\nbroker_name = "b"\n[namesrv]\nenable_topic_list = false\nscanNotActiveBrokerInterval = 100\n'
    )
    settings = load_namesrv_settings(path)
    assert settings == NamesrvSettings(enable_topic_list=False, scan_not_active_broker_interval_ms=100)
    assert set(from_toml(path)) == {"broker_name"}, "the store's and broker's part of the same file"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("listenPort=70000", SettingError, "65535"),
        ("listenPort=often", SettingError, "whole number"),
        ("listenPrt=1", UnknownSetting, "listenPort"),
        ("needWaitForService=perhaps", SettingError, "true nor false"),
    ],
)
def test_invalid_setting_is_named(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text(text)
    with pytest.raises(error, match=words):
        load_namesrv_settings(path)


def test_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text("listenPort=1\nenableTopicList=false\n")
    environ = {"COMETMQ_NAMESRV_LISTEN_PORT": "2", "COMETMQ_NAMESRV_ADDR": "h:1", "COMETMQ_NAMESRV": "h:1", "HOME": "/"}
    assert load_namesrv_settings(path, environ=environ) == NamesrvSettings(listen_port=2, enable_topic_list=False)
    assert load_namesrv_settings(path, environ=environ, overrides={"listenPort": 3}).listen_port == 3
    assert set(from_environment(environ)) == {"namesrv_addr"}, "a broker in the same environment"
    with pytest.raises(UnknownSetting, match="did you mean COMETMQ_NAMESRV_LISTEN_PORT"):
        load_namesrv_settings(environ={"COMETMQ_NAMESRV_LISTEN_PRT": "2"})
    with pytest.raises(SettingError, match="COMETMQ_NAMESRV_LISTEN_PORT"):
        load_namesrv_settings(environ={"COMETMQ_NAMESRV_LISTEN_PORT": "x"})


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        load_namesrv_settings(tmp_path / "missing.properties")
    (tmp_path / "c.toml").write_text("namesrv = 3")
    with pytest.raises(SettingError, match="table"):
        load_namesrv_settings(tmp_path / "c.toml")


def test_settings_that_a_request_may_change() -> None:
    changed = with_updates(NamesrvSettings(), {"enableTopicList": "false", "waitSecondsForService": "3"})
    assert changed == NamesrvSettings(enable_topic_list=False, wait_for_service_seconds=3)
    with pytest.raises(SettingError, match="true nor false"):
        with_updates(NamesrvSettings(), {"enableTopicList": "2"})


@pytest.mark.parametrize(
    "key", ["kvConfigPath", "kv_config_path", "bindAddress", "listenPort", "rocketmqHome", "nonsense"]
)
def test_paths_addresses_and_unknown_settings_are_refused(key: str) -> None:
    with pytest.raises(PermissionError, match=key):
        with_updates(NamesrvSettings(), {"enableTopicList": "false", key: "1"})


def test_the_text_reads_back(tmp_path: Path) -> None:
    settings = NamesrvSettings(kv_config_path="kv.json", support_acting_master=True)
    path = tmp_path / "namesrv.properties"
    path.write_text(properties_text(settings))
    assert load_namesrv_settings(path) == settings
    assert "supportActingMaster=true\n" in path.read_text()
