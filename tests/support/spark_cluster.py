"""A standalone Spark cluster on loopback: a master and workers, each a process group, on ports that are free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Cluster", "spark_cluster"]

_DEADLINE_S = 120.0


class Cluster:
    """A running cluster.

    Attributes:
        url: the master's, for ``SparkSession.builder.master``.
    """

    def __init__(self, folder: Path) -> None:
        """Start a master that keeps its log in ``folder``."""
        self._folder = folder
        self._programs: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._start("master", "org.apache.spark.deploy.master.Master", "--webui-port", "0")
        self.url = self._logged("master", r"Starting Spark master at (spark://\S+)")

    def add_worker(self) -> None:
        """Start a worker of one core, and wait until the master knows it."""
        name = f"worker{len(self._workers)}"
        options = ("--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name))
        self._workers.append(self._start(name, "org.apache.spark.deploy.worker.Worker", *options, self.url))
        self._logged(name, r"(Successfully registered) with master")

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, as when its machine fails."""
        os.killpg(self._workers[number].pid, signal.SIGKILL)
        self._workers[number].wait()

    def stop(self) -> None:
        """Kill what is left."""
        for program in self._programs:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()

    def _start(self, name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        environment = {**os.environ, **own}
        command: list[str] = [
            str(home / "bin" / "spark-class"),
            program,
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            *options,
        ]
        with (self._folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True, cwd=self._folder
            )
        self._programs.append(started)
        return started

    def _logged(self, name: str, pattern: str) -> str:
        """Return what a program's log says, as soon as it does."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            text = (self._folder / f"{name}.log").read_text("utf-8", "replace")
            found = re.search(pattern, text)
            if found is not None:
                return found[1]
            if time.monotonic() > deadline or any(program.poll() is not None for program in self._programs):
                raise AssertionError(f"{name} did not start:\n{text}")
            time.sleep(0.05)


@contextmanager
def spark_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Run a cluster that keeps everything in ``folder``."""
    cluster = Cluster(folder)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()
