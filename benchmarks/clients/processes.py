"""Workers as processes: a line for a request, lines for its answer."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_machine import ROOT
from clients.rocketmq_sync import push_options
from clients.worker import ACCUMULATED_WINDOW, LATENCY_BODY_BYTES, REBALANCE_MS, WINDOW, How
from system.peers import PEER_VERSION, peer_programs

JAVA_SETTINGS = f"rocketmq-client {PEER_VERSION}, its defaults (JSON headers), JVM with a heap of 1 GiB, warmed up"
_ANSWER_S = 180
_STOP_S = 20


class WorkerFailed(Exception):
    """A worker could not do what it was asked, or is no more. ``trace`` says where it failed."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class WorkerProcess:
    """One worker. Not for several threads at once."""

    def __init__(self, name: str, process: subprocess.Popen[str], log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        """Ask for something and return the answer's row.

        Raises:
            WorkerFailed: it could not be done, or its result was not right.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._ended()) from None
        row: dict[str, Any] = {}
        while True:
            try:
                line = self._lines.get(timeout=_ANSWER_S)
            except queue.Empty:
                self._process.kill()
                raise WorkerFailed(f"{self._name} did not answer to {op} within {_ANSWER_S} s, and was ended") from None
            if not line:
                raise WorkerFailed(self._ended())
            answer = json.loads(line)
            if "error" in answer:
                raise WorkerFailed(answer["error"], answer["trace"] + self._log_tail())
            if "done" in answer:
                return row
            row = answer["row"]

    def _ended(self) -> str:
        return f"{self._name} has ended; the end of its output:\n{self._log_tail()}"

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class JavaWorker(WorkerProcess):
    """The official client, with the Python workers' windows and consumer settings."""

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        how = How(arguments.get("how", How.LISTENER))
        window = ACCUMULATED_WINDOW if how is How.ACCUMULATED else WINDOW
        more = {"body_bytes": LATENCY_BODY_BYTES, "settings": push_options(how), "window": window}
        return super().ask(op, namesrv=arguments["servers"], **{**more, **arguments})


@contextmanager
def worker_process(kind: str, home: Path) -> Iterator[WorkerProcess]:
    """Start a worker; it ends with the block."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "errors.log"
    command = _java_command(home) if kind == "java" else [sys.executable, "-m", "clients.worker_main", kind]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "ROCKETMQ_HOME": str(home)}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=home,
        ) as process,
    ):
        try:
            yield (JavaWorker if kind == "java" else WorkerProcess)(kind, process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _java_command(home: Path) -> list[str]:
    xml = home / "logback.xml"
    peer_programs.logging_xml(xml, home / "client.log", "WARN")
    return [
        peer_programs.java(),
        "-Xms1g",
        "-Xmx1g",
        "-XX:+UseG1GC",
        # As for the Python clients; and no second wait of 20 s if the broker did not know the group yet.
        f"-Drocketmq.client.rebalance.minInterval={REBALANCE_MS}",
        "-Drocketmq.client.rebalance.waitInterval=1000",
        f"-Duser.home={home}",
        f"-Drmq.logback.configurationFile={xml}",
        "-cp",
        peer_programs.classpath(PEER_VERSION),
        "io.cometmq.interop.Peer",
    ]
