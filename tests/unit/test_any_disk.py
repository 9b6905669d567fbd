"""Checks: tests do not see how full their disk is: brokers' and stores' ratios, and the refusal to start."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cometmq.broker.config import load_broker_config
from support.any_disk import ANY_DISK, retention_on_request, why_too_full


@pytest.mark.parametrize("environ", [None, ANY_DISK])
def test_brokers_begin_to_delete_and_refuse_at_95_percent(tmp_path: Path, environ: dict[str, str] | None) -> None:
    retention = load_broker_config(tmp_path, environ=environ).plan(10911).retention
    assert retention is not None
    assert (retention.max_used_ratio, retention.force_ratio, retention.warning_ratio) == (0.95, 0.95, 0.95)


def test_retention_on_request_has_no_hour_and_no_ratio_of_its_own() -> None:
    retention = retention_on_request(72)
    assert (retention.delete_hours, retention.max_used_ratio, retention.warning_ratio) == ((), 1, 1)


def test_a_disk_at_95_percent_is_too_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SimpleNamespace(f_frsize=4096, f_blocks=1000, f_bfree=51, f_bavail=51)
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    assert why_too_full(tmp_path) is None
    space.f_bfree = space.f_bavail = 50
    message = why_too_full(tmp_path)
    assert message == f"the disk of {tmp_path} is 95.0% full, tests need it below 95%: free space or set TMPDIR"
