"""Checks: a broker's addresses and its own report follow from its settings; dangerous settings are refused."""

from __future__ import annotations

import enum
import os
from pathlib import Path

import pytest

from cometmq.broker.config import SETTABLE, BrokerConfig, load_broker_config
from cometmq.errors import InvalidArgument, StorageError
from cometmq.store.options import FlushMode, Retention
from cometmq.store_config.errors import SettingError, UnknownSetting
from cometmq.store_config.setting_names import OPTIONS
from cometmq.store_config.settings import FlushDiskType


def load(**arguments: object) -> BrokerConfig:
    return load_broker_config("data", environ={}, **arguments)  # type: ignore[arg-type]


def test_defaults_are_safe() -> None:
    config = load()
    assert (config.host, config.port, config.advertised_ip) == ("127.0.0.1", 10911, "127.0.0.1")
    assert config.addresses(10911) == ("127.0.0.1:10911", "127.0.0.1:10909")
    assert config.advertised(10911) == "127.0.0.1:10911"
    assert config.flush is FlushMode.SYNC
    assert config.name_servers == ()
    assert config.broker_name
    plan = config.plan(10911)
    assert plan.retention == Retention(), "a broker deletes as upstream does"
    assert plan.path == Path("data")


def test_a_brokers_properties(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text(
        "brokerName=broker-a\nlistenPort=16911\nnamesrvAddr=127.0.0.1:9876; 127.0.0.1:9877\nbrokerIP1=192.0.2.7\n"
        "flushDiskType=ASYNC_FLUSH\nmisspelt=1\n"
    )
    config = load(config=file)
    assert (config.broker_name, config.port, config.advertised_ip) == ("broker-a", 16911, "192.0.2.7")
    assert config.advertised(16911) == "192.0.2.7:16911"
    assert config.name_servers == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert config.flush is FlushMode.ASYNC
    assert config.unknown == ("misspelt",)
    assert config.plan(16911).settings.listen_port == 16911
    assert load(config=file, settings={"brokerName": "other"}).broker_name == "other"


def test_the_store_may_come_from_the_settings() -> None:
    assert load_broker_config(environ={}, settings={"storePathRootDir": "/s"}).path == Path("/s")
    with pytest.raises(InvalidArgument, match="no store was given"):
        load_broker_config(environ={})


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0),
        (":1234", "127.0.0.1", 1234),
        ("localhost:1", "127.0.0.1", 1),
        ("[::1]:5", "::1", 5),
        ("127.9.9.9:7", "127.9.9.9", 7),
    ],
)
def test_where_to_listen(listen: str, host: str, port: int) -> None:
    config = load(listen=listen)
    assert (config.host, config.port, config.advertised_ip) == (host, port, host)


def test_a_free_port_has_no_fast_one_and_low_ports_have_none() -> None:
    assert load(listen=":0").addresses(40_001) == ("127.0.0.1:40001",)
    assert load(listen=":2").addresses(2) == ("127.0.0.1:2",)
    assert load(listen="[::1]:10911").addresses(10911) == ("[::1]:10911", "[::1]:10909")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]"])
def test_other_addresses_are_refused_unless_meant(host: str) -> None:
    with pytest.raises(InvalidArgument, match=r"refusing to listen on .* --insecure-listen"):
        load(listen=f"{host}:10911")
    config = load(listen=f"{host}:10911", insecure_listen=True)
    assert config.host == host.strip("[]")
    assert config.advertised_ip not in ("0.0.0.0", "::"), "clients cannot connect to a wildcard"
    with pytest.raises(InvalidArgument, match="refusing to listen"):
        load(settings={"bindAddress": host.strip("[]")})


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"listen": "host"}, InvalidArgument, "write host:port"),
        ({"listen": "127.0.0.1:99999"}, InvalidArgument, "0 to 65535"),
        ({"listen": "example.org:1"}, InvalidArgument, "numeric address"),
        ({"settings": {"brokerIP1": "example.org"}}, InvalidArgument, "brokerIP1"),
        ({"settings": {"namesrvAddr": "127.0.0.1"}}, InvalidArgument, "write host:port"),
        ({"settings": {"brokerRole": "SLAVE"}}, InvalidArgument, "is always a master"),
        ({"settings": {"brokerRole": "SYNC_MASTER"}}, InvalidArgument, "no replicas"),
        ({"settings": {"brokerId": 1}}, InvalidArgument, "is always a master"),
        ({"settings": {"storeType": "defaultRocksDB"}}, InvalidArgument, "defaultRocksDB"),
        ({"settings": {"enableDLegerCommitLog": True}}, InvalidArgument, "DLedger"),
        ({"settings": {"brokerPermission": 8}}, SettingError, "outside 0 to 7"),
        ({"settings": {"brokerPermision": 6}}, UnknownSetting, "brokerPermission"),
    ],
)
def test_invalid_setting_is_named(arguments: dict[str, object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        load(**arguments)


@pytest.mark.parametrize("name", ["aclEnable", "authenticationEnabled", "authorizationEnabled"])
def test_access_control_that_is_asked_for_is_not_left_out(tmp_path: Path, name: str) -> None:
    file = tmp_path / "broker.properties"
    file.write_text(f"{name} = true\n")
    with pytest.raises(InvalidArgument, match=f"{name} is true: .* does not check credentials"):
        load_broker_config(tmp_path, config=file, environ={})
    file.write_text(f"{name} = false\n")
    load_broker_config(tmp_path, config=file, environ={})


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("inSyncReplicas = 2\nsendMessageThreadPoolNums = 16\nbrokerName = a\n")
    line = load_broker_config(tmp_path, config=file, environ={}).without_effect
    assert line is not None
    assert "inSyncReplicas (slaves" in line
    assert "sendMessageThreadPoolNums (threads" in line
    assert load_broker_config(tmp_path, environ={}).without_effect is None


def test_files_are_deleted_forcibly_only_where_the_setting_allows_it() -> None:
    forced = load(settings={"cleanFileForciblyEnable": True}).plan(1).retention
    kept = load(settings={"cleanFileForciblyEnable": False}).plan(1).retention
    assert forced is not None
    assert kept is not None
    assert (forced.force_ratio, kept.force_ratio) == (0.85, None)


def test_pops_that_another_store_knows_are_not_left_behind(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("popConsumerKVServiceInit = true\npopConsumerKVServiceEnable = true\n")
    with pytest.raises(InvalidArgument, match=r"popConsumerKVServiceEnable is true: .* exportPopRecord"):
        load_broker_config(tmp_path, config=file, environ={})
    file.write_text("popConsumerKVServiceInit = true\npopConsumerKVServiceEnable = false\n")
    load_broker_config(tmp_path, config=file, environ={})


def test_paths_and_addresses_cannot_be_changed_by_requests() -> None:
    for name in SETTABLE:
        option = OPTIONS[name]
        assert issubclass(option.kind, int | enum.Enum) or option.check is not None, (
            f"{name} is any text: could it be a path, a command or an address?"
        )
        assert not set(name.split("_")) & {"path", "paths", "dir", "addr", "address", "listen", "port", "ip1", "ip2"}


def test_settings_are_those_that_hold(tmp_path: Path) -> None:
    """The settings that the broker reports are those in effect, defaults included."""
    config = load_broker_config(tmp_path, listen="127.0.0.1:12345", environ={}).registered_with("127.0.0.1:9876")
    settings = config.settings
    assert settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.broker_name == config.broker_name
    assert (settings.bind_address, settings.listen_port) == ("127.0.0.1", 12345)
    assert settings.broker_ip1 == "127.0.0.1"
    assert settings.namesrv_addr == "127.0.0.1:9876"
    given = load_broker_config(tmp_path, settings={"flushDiskType": "ASYNC_FLUSH"}, environ={})
    assert given.settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH


def own_file(root: Path) -> Path:
    (root / "cometmq").mkdir()
    return root / "cometmq" / "broker.properties"


@pytest.mark.parametrize("line", ["storePathCommitLog = /elsewhere", "namesrvAddr = 10.0.0.9:9876", "noSuchName = 1"])
def test_store_s_own_settings_file_has_only_settings_that_requests_may_change(tmp_path: Path, line: str) -> None:
    file = own_file(tmp_path)
    file.write_text(f"fileReservedTime = 48\n{line}\n")
    with pytest.raises(SettingError, match=rf"cometmq/broker.properties: {line.split()[0]}: .*--config"):
        load_broker_config(tmp_path, environ={})
    given = tmp_path / "given.properties"
    given.write_text("fileReservedTime = 24\n")
    assert load_broker_config(tmp_path, config=given, environ={}).settings.file_reserved_time_hours == 24
    file.write_text("fileReservedTime = 48\n")
    assert load_broker_config(tmp_path, environ={}).settings.file_reserved_time_hours == 48


@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "fifo", "folder", "huge"])
def test_store_s_own_settings_file_is_a_plain_file(tmp_path: Path, kind: str) -> None:
    """The store may come from elsewhere: nothing outside it is read, and nothing is waited for."""
    file = own_file(tmp_path)
    outside = tmp_path / "outside.properties"
    outside.write_text("fileReservedTime = 48\n")
    if kind == "link":
        file.symlink_to(outside)
    elif kind == "dangling":
        file.symlink_to(tmp_path / "nothing")
    elif kind == "loop":
        file.symlink_to(file)
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.touch()
        os.truncate(file, 1 << 40)
    with pytest.raises(StorageError, match=r"cannot read .*cometmq/broker.properties"):
        load_broker_config(tmp_path, environ={})
