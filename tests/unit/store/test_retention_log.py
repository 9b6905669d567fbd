"""Checks: the log names each threshold that a disk crosses, refused appends, and each deleted segment."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import cometmq
from cometmq.store.options import Retention
from cometmq.store.retention_log import RetentionLog
from support.any_disk import retention_on_request

PATH = Path("/data")
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cometmq.store")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def test_each_threshold_is_logged_once_when_it_is_crossed_and_left(caplog: pytest.LogCaptureFixture) -> None:
    log = RetentionLog(PATH, Retention())
    log.note((0.5, 0, False, [], 0))
    assert lines(caplog) == []
    for _ in range(2):
        log.note((0.801, 1, False, [], 0))
    at_any_hour = "expired segments are deleted at any hour"
    assert lines(caplog) == [
        ("WARNING", f"the disk of /data is 80.1% full, above diskMaxUsedSpaceRatio (75%): {at_any_hour}")
    ]
    log.note((0.95, 3, False, [], 0))
    assert [(level, text.split(", ")[1]) for level, text in lines(caplog)[:2]] == [
        ("WARNING", "above diskSpaceCleanForciblyRatio (85%): the oldest segments are deleted whatever their age"),
        ("WARNING", "above diskSpaceWarningLevelRatio (90%): appends are refused"),
    ]
    log.note((0.7, 0, False, [], 0))
    assert [level for level, _ in lines(caplog)] == ["INFO"] * 4


def test_refused_appends_are_logged_when_they_begin_and_end(caplog: pytest.LogCaptureFixture) -> None:
    log = RetentionLog(PATH, None)
    for is_full in (False, True, True, False, False):
        log.note((0.0, 0, is_full, [], 0))
    assert lines(caplog) == [
        ("WARNING", "appends to /data are refused until its disk has space"),
        ("INFO", "appends to /data are accepted again"),
    ]


def test_deletions_are_logged_with_age_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    RetentionLog(PATH, Retention()).note((0.1, 0, False, [(0, 73 * HOUR_MS, True), (1024, 90_000, False)], 5))
    assert lines(caplog) == [
        ("INFO", "segment 00000000000000000000 of /data deleted, expired: its last write was 73.0 h ago"),
        (
            "WARNING",
            "segment 00000000000000001024 of /data deleted before it expired, as the disk is too full: "
            "its last write was 0.0 h ago",
        ),
        ("WARNING", "5 more segments of /data deleted"),
    ]


def test_store_on_a_full_disk_logs_its_deletions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    full = Retention(max_used_ratio=1e-12, force_ratio=1e-12, warning_ratio=1e-12)
    with cometmq.open(tmp_path, retention=full, background=False) as store:
        store.append("orders", b"one")
        store.handle.maintain(force_durable_point=True)
        store._watch_upkeep()
        assert [level for level, _ in lines(caplog)] == ["WARNING"] * 4
        with pytest.raises(cometmq.DiskFull):
            store.append("orders", b"two")
        store._watch_upkeep()
        assert lines(caplog) == []


def test_deletions_shortly_before_a_close_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"mappedFileSizeCommitLog": 1 << 20, "cleanFileForciblyEnable": False}
    with cometmq.open(tmp_path / "data", retention=retention_on_request(0), settings=options) as store:
        store.append_many("orders", [bytes(64 << 10)] * 40)
        store.handle.maintain(True)
        deleted = store.expire()
    assert deleted > 0
    assert len([one for one in caplog.records if "deleted, expired" in one.getMessage()]) == deleted
