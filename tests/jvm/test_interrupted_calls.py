"""Checks: a stopped query's calls to the process that begins and commits writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.jvm import SOURCES, compiled, passes, spark_jars

pytest.importorskip("pyspark", reason="pyspark is not installed")

SERVICE = """#!/bin/sh
while read -r line; do case "$line" in *silent*) ;; *) echo '{"job": "j"}' ;; esac; done
"""


def test_interrupted_calls_get_their_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's interpreter is also chosen as Spark does: PYSPARK_DRIVER_PYTHON before PYSPARK_PYTHON."""
    service = tmp_path / "service"
    service.write_text(SERVICE)
    service.chmod(0o755)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(service))
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "of-the-workers"))
    java, *options = compiled([SOURCES / "spark" / "InterruptedCalls.java"], tmp_path / "classes", *spark_jars())
    passes([java, *options, "cometmq.spark.InterruptedCalls"])
