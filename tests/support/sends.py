"""Answers of brokers to sends."""

from __future__ import annotations

from typing import Any

from cometmq._engine import SendAnswer

__all__ = ["send_answer"]


def send_answer(**given: Any) -> SendAnswer:
    """Return an answer; fields that are not given are those of a message stored first in queue 0."""
    values: dict[str, Any] = {
        "code": 0,
        "remark": None,
        "message_id": "7F0000010000000000000000",
        "queue_id": 0,
        "queue_offset": 0,
        "transaction_id": None,
        "region_id": None,
        "trace_on": True,
        "batch_unique_id": None,
        "recall_handle": None,
    }
    return SendAnswer(**(values | given))
