"""A send and a pull, where a test cares for neither."""

from __future__ import annotations

from cometmq._engine import PullRequest, SendRequest

__all__ = ["PULL", "SEND"]

SEND = SendRequest(code=310, producer_group="g", topic="t", queue_id=0, properties=b"", body=b"", born_timestamp_ms=0)
PULL = PullRequest(
    group="g",
    topic="t",
    queue_id=0,
    queue_offset=0,
    max_messages=1,
    sys_flag=0,
    commit_offset=0,
    suspend_timeout_ms=0,
    sub_version=0,
    max_bytes=0,
)
