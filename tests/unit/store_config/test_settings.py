"""Checks: settings from every source, with upstream's names and defaults; every bad value and name is named."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from cometmq.errors import Error, StorageError
from cometmq.store_config.broker_properties import parse_broker_properties, read_broker_properties
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.errors import SettingError, UnknownSetting
from cometmq.store_config.known_options import KNOWN_UPSTREAM_NAMES
from cometmq.store_config.request_modes import MessageRequestMode
from cometmq.store_config.setting_names import OPTIONS, find_setting, similar_names, snake_case
from cometmq.store_config.setting_sources import from_environment, from_mapping, from_toml, load_settings
from cometmq.store_config.settings import BrokerRole, FlushDiskType, StoreSettings, StoreType
from support.golden import broker_properties, golden_names

OLD_SPELLINGS = {"mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue", "mapedFileSizeConsumeQueueExt"}


def load_properties(text: str) -> StoreSettings:
    settings = parse_broker_properties(text.encode("iso-8859-1"), source="broker.properties").settings
    return StoreSettings(**{name: given.value for name, given in settings.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", golden_names())
def test_the_golden_brokers_properties(name: str) -> None:
    loaded = load_settings(properties=broker_properties(name), environ={})
    settings = loaded.settings
    assert loaded.unknown == ()
    assert settings.mapped_file_size_commit_log_bytes == 1 << 20
    assert settings.consume_queue_file_bytes == 60_000
    assert settings.index_file_bytes == 40 + 4 * 1000 + 20 * 4000
    assert settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert settings.broker_name == "broker-a"
    assert settings.enable_consume_queue_ext == (name in ("apache-5.3.3-rare", "apache-5.3.3-groups"))
    assert settings.timer_wheel_enable == (name != "apache-5.3.3-expired")
    assert settings.file_reserved_time_hours == (0 if name == "apache-5.3.3-expired" else 72)
    assert settings.enabled_append_prop_crc == (name == "apache-5.3.3-rare")
    assert loaded.given["mapped_file_size_commit_log_bytes"] == str(broker_properties(name))
    assert "max_message_size_bytes" in loaded.given or "groups" in name or "expired" in name
    assert settings.enable_pop_buffer_merge == ("groups" in name)
    assert loaded.unused == {}


def test_defaults_are_upstreams() -> None:
    settings = StoreSettings()
    assert settings.mapped_file_size_commit_log_bytes == 1073741824
    assert settings.consume_queue_file_bytes == 6000000
    assert settings.mapped_file_size_consume_queue_ext_bytes == 50331648
    assert settings.mapper_file_size_batch_consume_queue_bytes == 13800000
    assert settings.mapped_file_size_timer_log_bytes == 104857600
    assert settings.index_file_bytes == 420000040
    assert settings.max_message_size_bytes == 4194304
    assert settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert settings.broker_role is BrokerRole.ASYNC_MASTER
    assert settings.delete_hours_of_day == (4,)
    assert settings.message_delay_levels_ms == (
        *(1_000, 5_000, 10_000, 30_000),
        *(minutes * 60_000 for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(3_600_000, 7_200_000),
    )
    assert len(settings.message_delay_levels_ms) == 18
    assert settings.commit_log_paths(Path("/s")) == (Path("/s/commitlog"),)


def test_pops_have_upstreams_defaults() -> None:
    settings = BrokerSettings()
    assert (settings.revive_queue_num, settings.enable_retry_topic_v2) == (8, False)
    assert settings.enable_pop_buffer_merge is False
    assert settings.pop_ck_stay_buffer_time_ms == 10_000
    assert settings.pop_ck_stay_buffer_time_out_ms == 3_000
    assert settings.pop_ck_max_buffer_size == 200_000
    assert settings.pop_ck_offset_max_queue_size == 20_000
    assert settings.enable_pop_message_threshold is False
    assert settings.pop_inflight_message_threshold == 10_000
    assert settings.pop_from_retry_probability == 20
    assert settings.retrieve_message_from_pop_retry_topic_v1 is True
    assert settings.init_pop_offset_by_check_msg_in_mem is True
    assert settings.max_pop_polling_size == 100_000
    assert settings.pop_polling_size == 1_024
    assert settings.skip_when_ck_re_put_reach_max_times is False
    assert settings.default_pop_share_queue_num == -1
    assert settings.default_message_request_mode is MessageRequestMode.PULL


def test_every_setting_has_a_name_that_follows_from_upstreams() -> None:
    units = "bytes|ms|hours|hours_of_day|percent|bits|slots|seconds|minutes"
    renamed = {
        "os_page_cache_busy_time_out_ms": "osPageCacheBusyTimeOutMills",
        "timer_roll_window_slots": "timerRollWindowSlot",
        "timer_max_delay_seconds": "timerMaxDelaySec",
        "transaction_timeout_ms": "transactionTimeOut",
        "max_ha_transfer_bytes_per_second": "maxHaTransferByteInSecond",
        "store_path_dledger_commit_log": "storePathDLedgerCommitLog",
        "enable_dleger_commit_log": "enableDLegerCommitLog",
        "short_polling_time_ms": "shortPollingTimeMills",
        "wait_time_in_send_queue_ms": "waitTimeMillsInSendQueue",
        "register_broker_timeout_ms": "registerBrokerTimeoutMills",
    }
    ours = {
        "autoCreateTopicMax",
        "autoCreateGroupMax",
        "connectionsMax",
        "connectionsPerAddressMax",
        "messageIndexTags",
        "stagedWritesEnable",
        "stagedBytesMax",
        "stagedJobsMax",
        "stagedJobExpireTime",
    }
    for field, option in OPTIONS.items():
        stem = snake_case(option.upstream_name)
        assert re.fullmatch(f"{stem}(_({units}))?", field) or renamed[field] == option.upstream_name, field
        assert (option.upstream_name in KNOWN_UPSTREAM_NAMES) is (option.upstream_name not in ours)
        assert option.doc
        assert find_setting(field) == find_setting(option.upstream_name) == find_setting(stem) == field


def test_defaults_pass_their_own_checks() -> None:
    settings = BrokerSettings()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None:
            assert OPTIONS[field.name].convert(value, key=field.name, source="defaults") == value


def test_values_from_properties() -> None:
    settings = load_properties(
        "mappedFileSizeConsumeQueue=1001\n"
        "storePathCommitLog=/a, /b\n"
        "flushDiskType=SYNC_FLUSH\n"
        "storeType = defaultRocksDB\n"
        "messageIndexEnable=FALSE\n"
        "messageDelayLevel=1s 2m 3h 4d\n"
        "deleteWhen=04;16\n"
        "diskMaxUsedSpaceRatio=99\n"
        "diskSpaceWarningLevelRatio=10\n"
        "diskSpaceCleanForciblyRatio=1\n"
    )
    assert settings.mapped_file_size_consume_queue_bytes == 1001
    assert settings.consume_queue_file_bytes == 1020
    assert settings.commit_log_paths(Path("/s")) == (Path("/a"), Path("/b"))
    assert settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.store_type is StoreType.ROCKSDB
    assert not settings.message_index_enable
    assert settings.message_delay_levels_ms == (1_000, 120_000, 10_800_000, 345_600_000)
    assert settings.delete_hours_of_day == (4, 16)
    assert settings.disk_max_used_space_ratio == 0.95
    assert settings.disk_space_warning_level_ratio == 0.35
    assert settings.disk_space_clean_forcibly_ratio == 0.30


@pytest.mark.parametrize("name", sorted(OLD_SPELLINGS))
def test_old_spellings(name: str) -> None:
    assert load_properties(f"{name}=4000") == load_properties(f"{name.replace('maped', 'mapped')}=4000")
    assert load_properties(f"{name}=4000\n{name.replace('maped', 'mapped')}=4000")
    with pytest.raises(SettingError, match=f"{name.replace('maped', 'mapped')}: 5000 contradicts {name} = 4000"):
        load_properties(f"{name}=4000\n{name.replace('maped', 'mapped')}=5000")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("mappedFileSizeCommitLog=1G", "'1G' is not a whole number without unit"),
        ("mappedFileSizeCommitLog=1024 ", "'1024 ' is not a whole number without unit, blanks"),
        ("mappedFileSizeCommitLog=", "'' is not a whole number"),
        ("mappedFileSizeCommitLog=0", "0 is outside 1 to 2147483647"),
        ("mappedFileSizeCommitLog=2147483648", "2147483648 is outside 1 to 2147483647"),
        ("mappedFileSizeCommitLog=" + "9" * 5000, "is not a whole number"),
        ("mapperFileSizeBatchConsumeQueue=100", "100 is not a multiple of 46"),
        ("maxMessageSize=9", "9 is outside 10 to"),
        ("messageIndexEnable=yes", "'yes' is neither true nor false"),
        ("flushDiskType=SYNC", "'SYNC' is none of SYNC_FLUSH, ASYNC_FLUSH"),
        ("messageDelayLevel=1s 5x", "level 2 is '5x'"),
        ("messageDelayLevel=1s  5s", "level 2 is ''"),
        ("messageDelayLevel=", "level 1 is ''"),
        ("deleteWhen=24", "'24' is not an hour of the day"),
        ("deleteWhen=4,16", "'4,16' is not an hour of the day"),
        ("listenPort=65536", "65536 is outside 0 to 65535"),
        ("haMasterAddress=\\u00", "four hexadecimal digits"),
    ],
)
def test_bad_values_name_key_and_source(line: str, reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_properties(line)
    assert reason in str(caught.value)
    assert str(caught.value).startswith("broker.properties: ")
    assert caught.value.key == ("" if "hexadecimal" in reason else line.split("=")[0])
    assert caught.value.source == "broker.properties"
    assert isinstance(caught.value, ValueError | Error)


@pytest.mark.parametrize(
    ("name", "default", "bad"),
    [
        ("reviveQueueNum", 8, ["0", "1000"]),
        ("enableRetryTopicV2", False, ["2"]),
        ("enablePopBufferMerge", False, ["yes"]),
        ("popCkStayBufferTime", 10_000, ["0", "2147483648"]),
        ("popCkStayBufferTimeOut", 3_000, ["0", "-1"]),
        ("popCkMaxBufferSize", 200_000, ["0", "2147483648"]),
        ("popCkOffsetMaxQueueSize", 20_000, ["0"]),
        ("enablePopMessageThreshold", False, ["on"]),
        ("popInflightMessageThreshold", 10_000, ["0"]),
        ("popFromRetryProbability", 20, ["-1", "101"]),
        ("retrieveMessageFromPopRetryTopicV1", True, ["maybe"]),
        ("initPopOffsetByCheckMsgInMem", True, ["1"]),
        ("maxPopPollingSize", 100_000, ["0"]),
        ("popPollingSize", 1_024, ["0", "many"]),
        ("skipWhenCKRePutReachMaxTimes", False, [""]),
        ("defaultPopShareQueueNum", -1, ["-2"]),
    ],
)
def test_settings_of_pops(name: str, default: object, bad: list[str]) -> None:
    field = find_setting(name)
    assert field is not None
    assert getattr(BrokerSettings(), field) == default
    for value in bad:
        with pytest.raises(SettingError, match=name):
            load_properties(f"{name}={value}\n")


def test_names_that_are_not_ours_are_put_aside() -> None:
    parsed = parse_broker_properties(b"sendMessageThreadPoolNums=4\nmappedFileSizeCommitlog=5\nmine=1\n", source="x")
    assert parsed.settings == {}
    assert parsed.unused == {"sendMessageThreadPoolNums": "4"}
    assert parsed.unknown == ("mappedFileSizeCommitlog", "mine")


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "cometmq.toml"
    path.write_text(
        'flushDiskType = "sync_flush"\n'
        "max_message_size_bytes = 1_000_000\n"
        "[store]\n"
        'store_path_commit_log = ["/a", "/b"]\n'
        "message_index_enable = false\n"
        "[broker]\n"
        'brokerName = "b"\n'
        "flushCommitLogTimed = true\n",
        encoding="utf-8",
    )
    settings = load_settings(toml=path, environ={}).settings
    assert settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.max_message_size_bytes == 1_000_000
    assert settings.store_path_commit_log == ("/a", "/b")
    assert not settings.message_index_enable
    assert settings.broker_name == "b"


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (
            "flush_disk_typ = 'SYNC_FLUSH'",
            UnknownSetting,
            "flush_disk_typ: there is no such setting; did you mean flush_d",
        ),
        ("flushDiskTyp = 'SYNC_FLUSH'", UnknownSetting, "did you mean flushDiskType"),
        ("[storage]\nx = 1", UnknownSetting, "storage: there is no such setting"),
        ("[store]\nqqq = 1", UnknownSetting, "qqq: there is no such setting"),
        ("store = 1", SettingError, "store: this is the name of a table"),
        ("brokerName = 'a'\n[broker]\nbrokerName = 'b'", SettingError, "broker.brokerName: is given twice"),
        ("maxIndexNum = 4000.0", SettingError, "maxIndexNum: 4000.0 is not a whole number"),
        ("maxIndexNum = true", SettingError, "maxIndexNum: True is not a whole number"),
        ("messageIndexEnable = 1", SettingError, "messageIndexEnable: 1 is neither"),
        ("brokerName = 5", SettingError, "brokerName: 5 is not a text"),
        ("storePathCommitLog = 5", SettingError, "storePathCommitLog: 5 is not a list"),
        ("storePathCommitLog = [5]", SettingError, "storePathCommitLog: 5 is not a text"),
        ("x = ", SettingError, "this is not TOML"),
        ("x = " + "[" * 100_000, SettingError, "this is not TOML"),
    ],
)
def test_bad_toml(tmp_path: Path, text: str, kind: type[SettingError], reason: str) -> None:
    path = tmp_path / "cometmq.toml"
    path.write_text(text)
    with pytest.raises(kind) as caught:
        from_toml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)


def test_toml_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        from_toml(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(SettingError, match="not TOML"):
        from_toml(tmp_path / "bytes.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(SettingError, match="larger than"):
        from_toml(tmp_path / "large.toml")
    with pytest.raises(StorageError, match="cannot read"):
        read_broker_properties(tmp_path / "none.properties")


def test_environment() -> None:
    environ = {
        "COMETMQ_FLUSH_DISK_TYPE": "SYNC_FLUSH",
        "COMETMQ_MAX_MESSAGE_SIZE": "1000",
        "COMETMQ_FILE_RESERVED_TIME_HOURS": "5",
        "COMETMQ_SEED": "7",
        "COMETMQ_NAMESRV": "127.0.0.1:9876",
        "PATH": "/bin",
    }
    settings = load_settings(environ=environ, ignore_variables=("COMETMQ_SEED",)).settings
    assert settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.max_message_size_bytes == 1000
    assert settings.file_reserved_time_hours == 5
    with pytest.raises(UnknownSetting, match="COMETMQ_SEED: there is no such setting"):
        from_environment(environ)
    with pytest.raises(UnknownSetting, match="did you mean COMETMQ_FLUSH_DISK_TYPE") as caught:
        from_environment({"COMETMQ_FLUSH_DISC_TYPE": "SYNC_FLUSH"})
    assert caught.value.key == "COMETMQ_FLUSH_DISC_TYPE"
    with pytest.raises(SettingError, match=r"^environment: COMETMQ_MAX_INDEX_NUM: 'x' is not"):
        from_environment({"COMETMQ_MAX_INDEX_NUM": "x"})


def test_later_sources_win(tmp_path: Path) -> None:
    properties, toml = tmp_path / "broker.properties", tmp_path / "cometmq.toml"
    properties.write_text("maxIndexNum=10\nmaxHashSlotNum=10\ndeleteFileBatchMax=10\nfileReservedTime=10\nbogus=1\n")
    toml.write_text("maxHashSlotNum = 20\ndeleteFileBatchMax = 20\nfileReservedTime = 20\n")
    environ = {"COMETMQ_DELETE_FILE_BATCH_MAX": "30", "COMETMQ_FILE_RESERVED_TIME": "30"}
    loaded = load_settings(
        properties=properties, toml=toml, environ=environ, overrides={"file_reserved_time_hours": 40}
    )
    settings = loaded.settings
    assert settings.max_index_num == 10
    assert settings.max_hash_slot_num == 20
    assert settings.delete_file_batch_max == 30
    assert settings.file_reserved_time_hours == 40
    assert loaded.unknown == ("bogus",)
    assert loaded.given == {
        "max_index_num": str(properties),
        "max_hash_slot_num": str(toml),
        "delete_file_batch_max": "environment",
        "file_reserved_time_hours": "keyword arguments",
    }


def test_keyword_arguments() -> None:
    layer = from_mapping(
        {
            "flush_disk_type": FlushDiskType.SYNC_FLUSH,
            "storePathRootDir": Path("/s"),
            "store_path_commit_log": Path("/c"),
        },
        source="keyword arguments",
    )
    assert {name: given.value for name, given in layer.items()} == {
        "flush_disk_type": FlushDiskType.SYNC_FLUSH,
        "store_path_root_dir": "/s",
        "store_path_commit_log": ("/c",),
    }
    with pytest.raises(UnknownSetting, match="keyword arguments: flsh_disk_type"):
        from_mapping({"flsh_disk_type": 1}, source="keyword arguments")


def test_suggestions() -> None:
    assert similar_names("mapped_file_size_commitlog")[0] == "mapped_file_size_commit_log_bytes"
    assert similar_names("mapedFileSizeCommitlog")[0] in ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog")
    assert similar_names("zzz") == ()
    assert UnknownSetting(key="k", source="s", suggestions=()).message == "s: k: there is no such setting"


def test_the_environment_is_the_processs_own_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMETMQ_MAX_INDEX_NUM", "77")
    assert load_settings().settings.max_index_num == 77
    assert load_settings(environ={}).settings.max_index_num == 20_000_000
