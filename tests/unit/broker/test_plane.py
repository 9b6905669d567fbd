"""Checks: a message of the broker's own leaves the event loop only where storing it waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.plane import OutgoingMessage, put_for
from cometmq.errors import DiskFull
from cometmq.testing import cluster
from support.broker_twins import NOW_MS, Caller, Rig, run

MESSAGE = OutgoingMessage(
    topic="T",
    queue_id=0,
    body=b"x",
    properties={},
    flag=0,
    sys_flag=0,
    born_timestamp_ms=NOW_MS,
    born_host=("127.0.0.1", 40001),
    reconsume_times=0,
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


@pytest.mark.parametrize("waits", [False, True])
def test_own_messages_leave_the_event_loop_only_to_wait_for_the_disk(rig: Rig, waits: bool) -> None:
    rig.plane.waits_for_disk = waits
    place = run(put_for(Caller(), rig.plane, MESSAGE))
    assert place.queue_offset == 0
    assert (rig.plane.put_threads == [threading.current_thread().name]) is not waits


@pytest.mark.parametrize("waits", [False, True])
def test_failures_of_the_store_are_raised(rig: Rig, waits: bool) -> None:
    rig.plane.waits_for_disk, rig.plane.put_fails = waits, DiskFull("no room")
    with pytest.raises(DiskFull):
        run(put_for(Caller(), rig.plane, MESSAGE))


@pytest.mark.parametrize(("flush", "waits"), [("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)])
def test_plane_of_a_broker_waits_for_the_disk_under_sync_flush(flush: str, waits: bool) -> None:
    with cluster(settings={"flushDiskType": flush}) as running:
        assert running.broker._plane.waits_for_disk is waits
