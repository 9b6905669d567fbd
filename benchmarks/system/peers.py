"""Brokers as processes of their own, ours and Apache RocketMQ's 5.3.3, with the same flush mode and fresh stores.

The Java broker runs as its scripts start it, with a heap of 2 GiB; its jars come from
Maven as for the tests (``tests/interop``), and where Maven or Java is missing, :class:`PeerMissing` says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_machine import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from interop import harness
from interop.harness import PEER_VERSION, PeerMissing

__all__ = [
    "OURS",
    "PEER_VERSION",
    "PeerMissing",
    "Server",
    "busy_broker",
    "java_broker",
    "our_broker",
    "our_cluster",
    "prepare_java",
]

OURS = "ours"
"""The name of our broker among the measured ones."""

_START_S = 90
_STOP_S = 60


@dataclass(frozen=True)
class Server:
    """A broker that takes requests."""

    name: str
    address: str
    pid: int

    def memory_mib(self) -> float:
        """Return what it has in memory of its own: neither files nor libraries."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
        return kib / 1024

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prepare_java() -> None:
    """Get the jars, once.

    Raises:
        PeerMissing: Java or Maven is missing, or the jars cannot be had.
    """
    harness._classpath(PEER_VERSION)


@contextmanager
def busy_broker(home: Path, *, flush: str) -> Iterator[Server]:
    """Start our broker inside a process one thread of which runs Python all the time."""
    program = Path(__file__).parent / "busy_main.py"
    command = [sys.executable, str(program), str(home / "store"), flush]
    with _process("busy", command, home, "listening on 127.0.0.1:", {}) as (process, line):
        yield Server("ours, Python busy", line.rpartition(" ")[2].strip(), process.pid)


@contextmanager
def our_broker(home: Path, *, flush: str) -> Iterator[Server]:
    """Start ``cometmq broker``; ``flush`` is ``sync`` or ``async``."""
    command = [
        sys.executable,
        "-m",
        "cometmq",
        "broker",
        str(home / "store"),
        "--listen",
        "127.0.0.1:0",
        "--set",
        f"flushDiskType={flush.upper()}_FLUSH",
    ]
    with _process(OURS, command, home, "listening on 127.0.0.1:", {}) as (process, line):
        port = line.rpartition("127.0.0.1:")[2].split(";")[0].split()[0]
        yield Server(OURS, f"127.0.0.1:{port}", process.pid)


@contextmanager
def our_cluster(home: Path, *, flush: str) -> Iterator[tuple[str, Path]]:
    """Start ``cometmq serve``, a name server and a broker in one process; its name server's address, and the store."""
    store = home / "store"
    command = [sys.executable, "-m", "cometmq", "serve", str(store), "--listen", "127.0.0.1:0", "--json"]
    command += ["--namesrv-listen", "127.0.0.1:0", "--set", f"flushDiskType={flush.upper()}_FLUSH"]
    with _process(OURS, command, home, '"event": "broker started"', {}) as (_, line):
        yield json.loads(line)["name_servers"], store


@contextmanager
def java_broker(home: Path, *, flush: str) -> Iterator[Server]:
    """Start Apache RocketMQ's broker, without a name server."""
    port = harness._free_ports(1, -2)
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "broker.properties"
    settings.write_text(
        f"brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
        f"listenPort={port}\nhaListenPort={port + 1}\nfastListenPort={port - 2}\n"
        f"storePathRootDir={home / 'store'}\nstorePathCommitLog={home / 'store' / 'commitlog'}\n"
        f"flushDiskType={flush.upper()}_FLUSH\nbrokerRole=ASYNC_MASTER\n"
    )
    xml = home / "logback.xml"
    harness._logging_xml(xml, home / "broker.log", "WARN")
    command = [
        harness._java(),
        "-Xms2g",
        "-Xmx2g",
        "-XX:+UseG1GC",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        f"-Duser.home={home}",
        f"-Drmq.logback.configurationFile={xml}",
        "-cp",
        harness._classpath(PEER_VERSION),
        "org.apache.rocketmq.broker.BrokerStartup",
        "-c",
        str(settings),
    ]
    with _process("Java", command, home, "boot success", {"ROCKETMQ_HOME": str(home)}) as (process, _):
        yield Server("Java", f"127.0.0.1:{port}", process.pid)


@contextmanager
def _process(
    name: str, command: list[str], home: Path, ready: str, more: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a program, wait for a line of its output, and end it by SIGTERM behind the block."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "output.log"
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, env=os.environ | more, cwd=home
        ) as process,
    ):
        try:
            yield process, _line_of(name, process, log, ready)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _line_of(name: str, process: subprocess.Popen[str], log: Path, ready: str) -> str:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if ready in line:
                return line
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"the {name} broker did not start; the end of its output:\n{log.read_text()[-3000:]}")
