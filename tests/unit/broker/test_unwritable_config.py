"""Checks: producers get a retriable answer where a broker cannot write down a new topic."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cometmq.client import Producer
from cometmq.errors import SendFailed
from cometmq.remoting.codes import ResponseCode
from cometmq.store_config.file_ops import SystemFileOps
from cometmq.testing import cluster


def test_topic_that_cannot_be_written_down_is_refused_with_a_retriable_code(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SystemFileOps.write_synced

    def fails(self: SystemFileOps, path: Path, data: bytes) -> None:
        if path.name == "topics.json.tmp":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        write(self, path, data)

    with cluster() as running:
        with Producer("p", name_servers=running.name_server_address, retry_times_when_send_failed=0) as producer:
            monkeypatch.setattr(SystemFileOps, "write_synced", fails)
            for _ in range(2):  # the first failure leaves nothing behind that lets the second one pass
                with pytest.raises(SendFailed, match=r"cannot write .*topics.json: No such file") as refused:
                    producer.send("t", b"x")
                assert (refused.value.code, refused.value.is_uncertain) == (ResponseCode.SERVICE_NOT_AVAILABLE, False)
            monkeypatch.undo()
            producer.send("t", b"after")
        assert [message.body_bytes for message in running.broker.store.read("t")] == [b"after"]
