"""Checks: each of upstream's settings has its effect, is refused, or is harmless and named."""

from __future__ import annotations

import re
from pathlib import Path

import make_settings
import pytest

from cometmq.errors import InvalidArgument
from cometmq.store_config.known_options import KNOWN_UPSTREAM_NAMES
from cometmq.store_config.setting_effects import HARMLESS, REFUSALS, refuse_settings, settings_without_effect
from cometmq.store_config.setting_names import OPTIONS, UPSTREAM_NAMES

ROOT = Path(__file__).resolve().parents[3]
REFUSED = {refusal.name for refusal in REFUSALS}

REFUSED_VALUES: dict[str, object] = {
    "brokerId": 1,
    "enableDLegerCommitLog": True,
    "enableControllerMode": "true",
    "rocksdbCQDoubleWriteEnable": True,
    "readOnlyCommitLogStorePaths": ("/disk2/commitlog",),
    "flushIntervalCommitLog": 100,
    "messageStorePlugIn": "org.example.Store",
    "metricsExporterType": "PROM",
    "fetchNamesrvAddrByAddressServer": "true",
    "fetchNameSrvAddrByDnsLookup": "true",
    "aclEnable": "true",
    "authenticationEnabled": "true",
    "authorizationEnabled": " TRUE ",
    "useTLS": "true",
    "tls.enable": "true",
    "tls.server.mode": "enforcing",
    "popConsumerKVServiceEnable": "true",
    "timerRocksDBEnable": "true",
    "timerWheelSnapshotFlush": "true",
    "transRocksDBEnable": "true",
    "storeType": "defaultRocksDB",
}


def test_page_agrees_with_the_tables() -> None:
    assert (ROOT / make_settings.PATH).read_text("utf-8") == make_settings.document(), "run make settings"


def test_every_name_of_upstream_is_in_one_table() -> None:
    assert make_settings.unclassified() == set()
    assert HARMLESS.keys() - KNOWN_UPSTREAM_NAMES - UPSTREAM_NAMES.keys() == set()
    assert HARMLESS.keys() & REFUSED == set()


def test_settings_that_nothing_reads_are_harmless_or_refused() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path.name not in ("settings.py", "broker_settings.py")]
    text = "\n".join(path.read_text("utf-8") for path in sources)
    text += "\n".join(re.findall(r"self\.\w+", (ROOT / "src/cometmq/store_config/settings.py").read_text("utf-8")))
    for field, option in OPTIONS.items():
        is_read = re.search(rf'\.{field}\b|"{field}"', text) is not None
        has_effect = option.upstream_name not in HARMLESS and not any(
            refusal.name == option.upstream_name and not refusal.has_effect for refusal in REFUSALS
        )
        assert is_read == has_effect, option.upstream_name


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: f"{refusal.name}={refusal.values}")
def test_refusal_names_setting_value_and_reason(refusal: object) -> None:
    assert isinstance(refusal, type(REFUSALS[0]))
    value = refusal.values if refusal.name == "brokerRole" else REFUSED_VALUES[refusal.name]
    given = {refusal.name: value, "flushDiskType": "ASYNC_FLUSH"}
    with pytest.raises(InvalidArgument, match=f"^{re.escape(refusal.name)} is .*{re.escape(refusal.reason)}"):
        refuse_settings(given)


def test_values_that_ask_for_nothing_are_not_refused() -> None:
    refuse_settings(
        {
            name: "false"
            for name in REFUSED
            if name.startswith(("acl", "auth", "enable", "fetch", "pop", "rocks", "use"))
        }
    )
    refuse_settings(
        {"brokerRole": "ASYNC_MASTER", "brokerId": "0", "storeType": "default", "tls.server.mode": "permissive"}
    )
    refuse_settings(
        {"tls.server.mode": "disabled", "readOnlyCommitLogStorePaths": "null", "messageStorePlugIn": "null"}
    )
    refuse_settings({"metricsExporterType": "DISABLE", "messageStorePlugIn": "", "readOnlyCommitLogStorePaths": ()})
    refuse_settings({"flushIntervalCommitLog": 500, "flushDiskType": "ASYNC_FLUSH"})
    refuse_settings({"flushIntervalCommitLog": 10, "flushDiskType": "SYNC_FLUSH"})
    refuse_settings({"flushIntervalCommitLog": 10})


def test_looking_name_servers_up_is_refused_where_they_have_names() -> None:
    asked = {"fetchNameSrvAddrByDnsLookup": "true"}
    for addresses in ("10.0.0.1:9876", "10.0.0.1:9876;[2001:db8::1]:9876", "http://10.0.0.1:9876, 10.0.0.2:9876;"):
        refuse_settings({**asked, "namesrvAddr": addresses})
    for others in (None, "", "null", "names.example:9876", "10.0.0.1:9876;names.example:9876"):
        with pytest.raises(InvalidArgument, match="fetchNameSrvAddrByDnsLookup is true"):
            refuse_settings({**asked, "namesrvAddr": others})


def test_line_names_the_settings_without_effect_by_subject() -> None:
    assert settings_without_effect(dict.fromkeys(["flushDiskType", "brokerName"])) is None
    assert settings_without_effect({"tls.server.mode": "disabled", "aclEnable": "false"}) is None
    assert settings_without_effect({"tls.server.mode": "permissive"}) == (
        "settings without effect: tls.server.mode (TLS, which CometMQ does not serve)"
    )
    harmless = ["slaveReadEnable", "brokerName", "enableCalcFilterBitMap", "inSyncReplicas"]
    assert settings_without_effect(dict.fromkeys(harmless)) == (
        "settings without effect: enableCalcFilterBitMap (bits of SQL92 filters in the queues' extension: every "
        "message is looked at by its properties); "
        "inSyncReplicas, slaveReadEnable (slaves, controllers and broker groups; a CometMQ broker stands alone)"
    )
