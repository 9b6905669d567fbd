"""Checks: questions about replicas are answered as by a master that has none."""

from __future__ import annotations

import json
from pathlib import Path

from cometmq.remoting.codes import RequestCode, ResponseCode
from support.broker_twins import Rig


def test_status_is_that_of_a_master_without_slaves(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.store.append("orders", b"one")
        answer = rig.run(RequestCode.GET_BROKER_HA_STATUS)
        status = json.loads(answer.body)
        assert (answer.code, status["master"], status["haConnectionInfo"]) == (ResponseCode.SUCCESS, True, [])
        assert status["masterCommitLogMaxOffset"] == rig.store.info().log_end > 0


def test_flush_offset_of_a_master_stays(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.store.append("orders", b"one")
        before = rig.store.info()
        answer = rig.run(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "0"})
        assert (answer.code, rig.store.info().log_end) == (ResponseCode.SUCCESS, before.log_end)


def test_epochs_are_refused_without_a_controller(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        answer = rig.run(RequestCode.GET_BROKER_EPOCH_CACHE)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "this request only for controllerMode")
