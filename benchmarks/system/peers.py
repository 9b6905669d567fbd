"""Brokers as processes of their own, ours and Apache RocketMQ's 5.3.3, with the same flush mode and fresh stores.

The Java broker runs as its scripts start it, with a heap of 2 GiB unless another is asked for; its jars come from
Maven as for the tests (``tests/interop``), and where Maven or Java is missing, :class:`PeerMissing` says so.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_machine import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from interop import processes as peer_programs
from interop import servers as peer_servers
from interop.processes import PEER_VERSION, PeerMissing

__all__ = [
    "OURS",
    "PEER_VERSION",
    "PeerMissing",
    "Server",
    "busy_broker",
    "java_broker",
    "our_broker",
    "our_cluster",
    "peer_programs",
    "peer_servers",
    "prepare_java",
    "running",
]

OURS = "ours"
"""The name of our broker among the measured ones."""

_START_S = 90
_STOP_S = 60


@dataclass(frozen=True)
class Server:
    """A server that takes requests."""

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

    def thread_cpu_s(self, name: str) -> float:
        """Return the CPU seconds of its living threads of that name."""
        found = [task for task in Path(f"/proc/{self.pid}/task").iterdir() if _first_line(task / "comm") == name]
        return sum(int(_first_line(task / "schedstat").split()[0]) for task in found) / 1e9


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").rstrip("\n")


def prepare_java() -> None:
    """Get the jars, once.

    Raises:
        PeerMissing: Java or Maven is missing, or the jars cannot be had.
    """
    peer_programs.classpath(PEER_VERSION)


@contextmanager
def busy_broker(home: Path, *, flush: str) -> Iterator[Server]:
    """Start our broker inside a process one thread of which runs Python all the time."""
    program = Path(__file__).parent / "busy_main.py"
    command = [sys.executable, str(program), str(home / "store"), flush]
    with _process("busy", command, home, "listening on 127.0.0.1:", {}) as (process, line):
        yield Server("ours, Python busy", line.rpartition(" ")[2].strip(), process.pid)


@contextmanager
def our_broker(home: Path, *, flush: str, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Start ``cometmq broker`` over ``home / "store"``; ``flush`` is ``sync`` or ``async``."""
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
    command += [part for name, value in (settings or {}).items() for part in ("--set", f"{name}={value}")]
    with _process(OURS, command, home, "listening on 127.0.0.1:", {}) as (process, line):
        port = line.rpartition("127.0.0.1:")[2].split(";")[0].split()[0]
        yield Server(OURS, f"127.0.0.1:{port}", process.pid)


@contextmanager
def our_cluster(home: Path, *, flush: str, settings: Mapping[str, str] | None = None) -> Iterator[tuple[Server, Path]]:
    """Start ``cometmq serve``, a name server and a broker in one process, and tell the name server's address."""
    store = home / "store"
    command = [sys.executable, "-m", "cometmq", "serve", str(store), "--listen", "127.0.0.1:0", "--json"]
    command += ["--namesrv-listen", "127.0.0.1:0", "--set", f"flushDiskType={flush.upper()}_FLUSH"]
    command += [part for name, value in (settings or {}).items() for part in ("--set", f"{name}={value}")]
    with _process(OURS, command, home, '"event": "broker started"', {}) as (process, line):
        yield Server(OURS, json.loads(line)["name_servers"], process.pid), store


@contextmanager
def java_broker(
    home: Path, *, flush: str, heap_mib: int = 2048, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start Apache RocketMQ's broker; without a name server, unless ``settings`` name one."""
    port = peer_servers.free_ports(1, -2)
    home.mkdir(parents=True, exist_ok=True)
    properties = home / "broker.properties"
    properties.write_text(
        f"brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
        f"listenPort={port}\nhaListenPort={port + 1}\nfastListenPort={port - 2}\n"
        f"storePathRootDir={home / 'store'}\nstorePathCommitLog={home / 'store' / 'commitlog'}\n"
        f"flushDiskType={flush.upper()}_FLUSH\nbrokerRole=ASYNC_MASTER\n"
        + "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    )
    xml = home / "logback.xml"
    peer_programs.logging_xml(xml, home / "broker.log", "WARN")
    command = [
        peer_programs.java(),
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        "-XX:+UseG1GC",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        f"-Duser.home={home}",
        f"-Drmq.logback.configurationFile={xml}",
        "-cp",
        peer_programs.classpath(PEER_VERSION),
        "org.apache.rocketmq.broker.BrokerStartup",
        "-c",
        str(properties),
    ]
    with _process("Java", command, home, "boot success", {"ROCKETMQ_HOME": str(home)}) as (process, _):
        yield Server("Java", f"127.0.0.1:{port}", process.pid)


@contextmanager
def running(name: str, command: list[str], home: Path, *, port: int) -> Iterator[Server]:
    """Start any other server, wait until its port takes connections, and end it by SIGTERM behind the block."""
    with _process(name, command, home, "", {}, port=port) as (process, _):
        yield Server(name, f"127.0.0.1:{port}", process.pid)


@contextmanager
def _process(
    name: str, command: list[str], home: Path, ready: str, more: dict[str, str], *, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a program, wait until it is ready, and end it by SIGTERM behind the block."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "output.log"
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, env=os.environ | more, cwd=home
        ) as process,
    ):
        try:
            yield process, _answers(name, process, log, port) if port else _line_of(name, process, log, ready)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _line_of(name: str, process: subprocess.Popen[str], log: Path, ready: str) -> str:
    """Wait for a line of its output."""

    def find() -> str | None:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if ready in line), None)

    return _until(find, name, process, log)


def _answers(name: str, process: subprocess.Popen[str], log: Path, port: int) -> str:
    """Wait until its port takes connections."""

    def connect() -> str | None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            return "" if probe.connect_ex(("127.0.0.1", port)) == 0 else None

    return _until(connect, name, process, log)


def _until(look: Callable[[], str | None], name: str, process: subprocess.Popen[str], log: Path) -> str:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"{name} did not start; the end of its output:\n{log.read_text()[-3000:]}")
