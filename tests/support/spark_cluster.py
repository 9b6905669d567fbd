"""A standalone Spark cluster on loopback: a master and workers, each a process group, on ports that are free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["Cluster", "Logged", "spark_cluster"]

_DEADLINE_S = 120.0


class Logged:
    """A running program and its descendants: a process group whose output goes into a file and can be waited for."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start it in the log's folder."""
        self._log = log
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            cwd=log.parent,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output, self._log.open("w", encoding="utf-8") as log:
            for line in output:
                log.write(line)
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Return what the pattern's group is in the first line that matches, as soon as there is one."""
        seen = 0
        found = None

        def has_ended() -> bool:
            nonlocal seen, found
            while found is None and seen < len(self._lines):
                found = re.search(pattern, self._lines[seen])
                seen += 1
            return found is not None or self._has_ended

        with self._changed:
            self._changed.wait_for(has_ended, _DEADLINE_S)
        if found is None:
            raise AssertionError(f"no line of {self._log.name} matches {pattern}:\n{self.output()}")
        return found[1]

    def wait(self, limit_s: float) -> int:
        """Return the exit code."""
        return self._process.wait(limit_s)

    def kill(self) -> None:
        """Kill what is left of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def output(self) -> str:
        """Return what it has written so far."""
        with self._changed:
            return "".join(self._lines)


class Cluster:
    """A running cluster.

    Attributes:
        url: the master's, for ``SparkSession.builder.master``.
    """

    def __init__(self, folder: Path) -> None:
        """Start a master that keeps its log in ``folder``."""
        self._folder = folder
        self._workers: list[Logged] = []
        self._master = self._started("master", "org.apache.spark.deploy.master.Master", "127.0.0.1")
        try:
            self.url = self._master.wait_for(r"Starting Spark master at (spark://\S+)")
        except BaseException:
            self._master.kill()
            raise

    def add_worker(self, host: str = "127.0.0.1", cores: int = 1) -> None:
        """Start a worker, and wait until the master knows it."""
        name = f"worker{len(self._workers)}"
        options = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(self._folder / name))
        worker = self._started(name, "org.apache.spark.deploy.worker.Worker", host, *options, self.url)
        self._workers.append(worker)
        worker.wait_for(r"(Successfully registered) with master")

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, as when its machine fails."""
        self._workers[number].kill()

    def stop(self) -> None:
        """Kill what is left."""
        for program in (*self._workers, self._master):
            program.kill()

    def _started(self, name: str, program: str, host: str, *options: str) -> Logged:
        import pyspark

        home = Path(pyspark.__file__).parent
        own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        command = [str(home / "bin" / "spark-class"), program, "--host", host, "--port", "0", "--webui-port", "0"]
        return Logged([*command, *options], self._folder / f"{name}.log", {**os.environ, **own})


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster without workers that keeps everything in ``folder``."""
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
