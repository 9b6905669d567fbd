"""Checks: a real RocketMQ's delayed messages, delivered by us, become the records that it delivered.

``golden_delay`` does the work, a C program that `make golden-programs` builds; without it these tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.golden import StoreKind, expected_records
from support.programs import built_program


def delivered_by_the_broker(name: str) -> int:
    """Count the records that a delay level delivered: in the topic and queue that they name, with a level."""
    return sum(
        record["properties"].get("REAL_TOPIC") == record["topic"]
        and record["properties"].get("REAL_QID") == str(record["queueId"])
        and int(record["properties"].get("DELAY", "0")) > 0
        for record in expected_records(name)
    )


@pytest.mark.parametrize(
    ("name", "deliveries"), [("apache-4.9.7", 26), ("apache-5.3.3", 32), ("apache-5.3.3-binary-headers", 31)]
)
def test_same_parked_records_same_deliveries(
    name: str, deliveries: int, golden_store: Callable[[str, StoreKind], Path]
) -> None:
    assert delivered_by_the_broker(name) == deliveries
    done = subprocess.run(
        [built_program("golden_delay"), golden_store(name, "clean"), str(deliveries)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
