"""Checks: a client of Spark Connect reads and writes through both engines of its server."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

import cometmq
from cometmq.spark import jars
from support.small_store import open_small
from support.spark import missing
from support.spark_cluster import Logged

PROGRAM = Path(__file__).parent / "copy_by_connect.py"
LACKING = [name for name in ("grpc", "grpc_status", "zstandard", "pandas") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.skipif(not jars(), reason="the engine for the JVM is not built: Java 17's javac was not found"),
    pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)} (pip install pyspark[connect])"),
]


def test_batches_and_streams_by_connect(tmp_path: Path) -> None:
    import pyspark

    with open_small(tmp_path / "store") as store:
        store.append_many("t", [b"%d" % number for number in range(1000)], tags="red")
    home = Path(pyspark.__file__).parent
    own = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment = {**os.environ, **own, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.local.dir": str(tmp_path),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.jars": ",".join(jars()),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    server = Logged(command, tmp_path / "server.log", environment)
    try:
        address = server.wait_for(r"Spark Connect server started at: (\S+:[1-9]\d*)")
        program = [sys.executable, str(PROGRAM), address, str(tmp_path / "store"), str(tmp_path)]
        client = Logged(program, tmp_path / "client.log", environment)
        try:
            ended = client.wait(300)
        finally:
            client.kill()
    finally:
        server.kill()
    assert ended == 0, client.output()[-4000:]
    assert client.output().count("engine=jvm") == 1
    for engine in ("python", "jvm"):
        with cometmq.open(tmp_path / engine, mode="r") as copy:
            for topic in ("batch", "stream"):
                assert sorted(int(bytes(message)) for message in copy.read(topic)) == list(range(1000))
