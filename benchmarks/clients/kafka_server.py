"""An Apache Kafka broker from Maven, as one process in KRaft mode."""

from __future__ import annotations

import base64
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_machine import ROOT
from system.peers import PeerMissing, Server, peer_programs, peer_servers, running

POM = Path(__file__).parent / "kafka" / "pom.xml"
VERSION = re.search("<kafka.version>(.*)</kafka.version>", POM.read_text(encoding="utf-8"))[1]  # type: ignore[index]
SETTINGS = (
    f"Kafka {VERSION} from Maven, KRaft, one node, heap 1 GiB as its scripts have it; acks=all of one replica, in the"
    " page cache (Kafka's default: no flush of its own); 8 partitions"
)
_BUILD = ROOT / "build" / "kafka"
_HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")


def kafka_class_path() -> str:
    """Get the jars, once.

    Raises:
        PeerMissing: Java or Maven is missing, or the jars cannot be had.
    """
    lib = _BUILD / f"lib-{VERSION}"
    if not (lib / f"kafka_2.13-{VERSION}.jar").exists():
        command = [peer_programs.maven(), "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerMissing(f"Maven could not get Kafka's jars: {(done.stdout + done.stderr)[-600:]}")
    return f"{lib}/*"


@contextmanager
def kafka_server(home: Path) -> Iterator[Server]:
    """Start it, and end it behind the block."""
    java, class_path = peer_programs.java(), kafka_class_path()
    home.mkdir(parents=True)
    port = peer_servers.free_ports(1)
    settings = home / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{port + 1}\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={home / 'log'}\n"
        # One node holds what three would.
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\nshare.coordinator.state.topic.replication.factor=1\n"
        "share.coordinator.state.topic.min.isr=1\n"
        "group.initial.rebalance.delay.ms=0\nauto.create.topics.enable=false\n"
    )
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    base = [java, *_HEAP, "-cp", class_path]
    formatted = subprocess.run(
        [*base, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    if formatted.returncode != 0:
        raise SystemExit(f"Kafka's folder could not be made: {formatted.stdout}{formatted.stderr}")
    with running("Kafka", [*base, "kafka.Kafka", str(settings)], home, port=port) as server:
        yield server
