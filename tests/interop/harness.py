"""A real Apache RocketMQ as the peer of our tests: its name server, its broker and its official client, as child JVMs.

Everything listens on 127.0.0.1 with ports that were free a moment before; everything written goes to the directory that
the caller names. Waiting is always for a condition (a line of output, an answer, the end of a process) with a limit,
never for a time. Only processes started here are ended, by their own pid.

Heap sizes and thread pools are kept small: a broker takes about 250 MB, the name server and the client 150 MB each.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from interop.patterns import MessageSpec

PROJECT = Path(__file__).resolve().parents[2]
JAVA_PROJECT = Path(__file__).resolve().parent / "java"
BUILD = Path(os.environ.get("CMQ_JAVA_BUILD", PROJECT / "build" / "java"))

PEER_VERSION = "5.3.3"
"""The version our Java program is compiled against, and the client's in every test. The broker's may differ."""

START_LIMIT_S = 90.0
STOP_LIMIT_S = 60.0
ANSWER_LIMIT_S = 90.0
POLL_STEP_S = 0.02

Row: TypeAlias = "dict[str, Any]"


class PeerMissing(Exception):
    """Java or Maven is not here, or the jars cannot be had; the text says which and is the reason for a skip."""


class PeerFailed(Exception):
    """The broker, the name server or the client answered with an error or ended; the text has the end of its log."""


# ---------------------------------------------------------------------------------------------------------------- jars


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise PeerMissing("Java 17 or newer is not installed (Debian: apt-get install openjdk-17-jdk-headless)")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', text)
    if found is None or int(found.group(1)) < 17:
        raise PeerMissing(f"Java 17 or newer is needed, found: {text.splitlines()[0] if text else 'nothing'}")
    return java


def _maven() -> str:
    if shutil.which("javac") is None:
        raise PeerMissing("a JDK is needed, found only a runtime (Debian: apt-get install openjdk-17-jdk-headless)")
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerMissing("Maven is not installed (Debian: apt-get install maven)")
    return maven


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in [JAVA_PROJECT / "pom.xml", *sorted(JAVA_PROJECT.rglob("*.java"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _run_maven(*goals: str) -> None:
    """Runs Maven from the local repository alone, and with the network only where that fails."""
    command = [_maven(), "-q", "-B", "-f", str(JAVA_PROJECT / "pom.xml"), f"-Dinterop.build={BUILD}", *goals]
    if subprocess.run([*command, "-o"], capture_output=True, check=False).returncode == 0:
        return
    online = subprocess.run(command, capture_output=True, text=True, check=False)
    if online.returncode == 0:
        return
    text = online.stdout + online.stderr
    # A compile error is our own fault and must not turn into a skip.
    if "COMPILATION ERROR" in text:
        raise PeerFailed(text)
    raise PeerMissing(f"Maven could not get the jars: {text[-600:]}")


def _classpath(version: str) -> str:
    """Builds once what ``version`` needs, under a lock against a second test run, and names the class path."""
    _java()
    BUILD.mkdir(parents=True, exist_ok=True)
    stamp = BUILD / f"stamp-{version}"
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _fingerprint()
        if not stamp.exists() or stamp.read_text() != wanted:
            if version == PEER_VERSION:
                _run_maven("compile", "dependency:copy-dependencies")
            else:
                _run_maven(f"-Drocketmq.version={version}", "dependency:copy-dependencies")
            stamp.write_text(wanted)
    jars = str(BUILD / f"lib-{version}" / "*")
    return f"{BUILD / 'peer' / 'classes'}:{jars}" if version == PEER_VERSION else jars


# ----------------------------------------------------------------------------------------------------------- processes


def _logging_xml(path: Path, log: Path, level: str) -> None:
    path.write_text(
        '<configuration><appender name="file" class="ch.qos.logback.core.FileAppender">'
        f"<file>{log}</file><encoder><pattern>%d %p %t %c - %m%n</pattern></encoder></appender>"
        # Once a second each, and never of interest here.
        + "".join(
            f'<logger name="{name}" level="OFF"/>' for name in ("RocketmqWaterMark", "RocketmqPop", "RocketmqTraffic")
        )
        + f'<root level="{level}"><appender-ref ref="file"/></root></configuration>'
    )


def _tail(path: Path, limit: int = 4000) -> str:
    return path.read_text(errors="replace")[-limit:] if path.exists() else ""


class Jvm:
    """One child JVM. Output goes to ``home/NAME.out``, RocketMQ's own log to ``home/NAME.log``."""

    def __init__(self, name: str, home: Path, *, version: str, heap_mb: int, log_level: str = "INFO") -> None:
        self._name = name
        self._version = version
        self._heap_mb = heap_mb
        self._home = home
        self.out = home / f"{name}.out"
        self.log = home / f"{name}.log"
        self.process: subprocess.Popen[str] | None = None
        (home / "conf").mkdir(parents=True, exist_ok=True)
        self._xml = home / "conf" / f"{name}.xml"
        _logging_xml(self._xml, self.log, log_level)
        # RocketMQ 4.9 takes its logging from fixed names below ROCKETMQ_HOME, 5.x from a system property.
        if name in ("broker", "namesrv"):
            shutil.copyfile(self._xml, home / "conf" / f"logback_{name}.xml")

    def start(self, main: str, *arguments: str, pipes: bool = False) -> subprocess.Popen[str]:
        """Starts the class; with ``pipes`` its standard input and output are the caller's."""
        command = [
            _java(),
            f"-Xmx{self._heap_mb}m",
            "-Xss512k",
            "-XX:MaxDirectMemorySize=256m",
            # Tests are short: the first compiler tier and the plain collector start faster and need less.
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            # RocketMQ 4.9 unmaps its files through these.
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
            f"-Duser.home={self._home}",
            f"-Djava.io.tmpdir={self._home}",
            f"-Drmq.logback.configurationFile={self._xml}",
            "-Drocketmq.client.logUseSlf4j=false",
            "-cp",
            _classpath(self._version),
            main,
            *arguments,
        ]
        # Where util-linux is there, a test run that is killed takes its children along.
        setpriv = shutil.which("setpriv")
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "KILL", *command]
        environment = {**os.environ, "ROCKETMQ_HOME": str(self._home)}
        environment.pop("NAMESRV_ADDR", None)
        with self.out.open("a") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out,
                stderr=out,
                cwd=self._home,
                env=environment,
                text=True,
                encoding="utf-8",
            )
        return self.process

    def wait_for_output(self, text: str, *, since: int) -> None:
        """Waits until ``text`` stands in the output behind ``since``. Raises PeerFailed when the JVM ends first."""
        assert self.process is not None
        limit = time.monotonic() + START_LIMIT_S
        while True:
            ended = self.process.poll() is not None
            with self.out.open(errors="replace") as out:
                out.seek(since)
                if text in out.read():
                    return
            if ended:
                raise PeerFailed(
                    f"{self._name} ended with {self.process.returncode}\n{_tail(self.out)}\n{_tail(self.log)}"
                )
            if time.monotonic() > limit:
                raise PeerFailed(
                    f"{self._name} is not up after {START_LIMIT_S} s\n{_tail(self.out)}\n{_tail(self.log)}"
                )
            time.sleep(POLL_STEP_S)

    def stop(self) -> None:
        """Asks the JVM to end (SIGTERM) and waits; one that hangs is killed and reported."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PeerFailed(f"{self._name} did not stop within {STOP_LIMIT_S} s\n{_tail(self.log)}") from None

    def kill(self) -> None:
        """kill -9: no shutdown hook runs, dirty pages stay with the system."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def _free_ports(*offsets: int) -> int:
    """A port that is free with its neighbours at ``offsets``, below the range that clients get ports from."""
    chooser = random.SystemRandom()
    for _ in range(200):
        port = chooser.randrange(20_000, 32_000)
        with contextlib.ExitStack() as sockets:
            try:
                for offset in (0, *offsets):
                    probe = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                    probe.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise PeerFailed("no free port found in 200 tries")


class NameServer:
    """An upstream name server, for as many brokers after each other as the tests like."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._jvm = Jvm("namesrv", home, version=PEER_VERSION, heap_mb=64)
        self._home = home
        self.address = ""

    def start(self) -> None:
        port = _free_ports()
        settings = self._home / "namesrv.properties"
        settings.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
        self._jvm.start("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(settings))
        self._jvm.wait_for_output("boot success", since=0)
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        # It holds nothing that is worth a clean end.
        self._jvm.kill()


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Lengths of the store's files, as in the golden stores: small, so that a test crosses their seams."""

    commit_log_bytes: int = 1 << 20
    consume_queue_units: int = 3000
    index_slots: int = 1000
    index_entries: int = 4000

    def properties(self) -> dict[str, object]:
        unit_bytes = 20
        return {
            "mappedFileSizeCommitLog": self.commit_log_bytes,
            "mapedFileSizeCommitLog": self.commit_log_bytes,
            "mappedFileSizeConsumeQueue": self.consume_queue_units * unit_bytes,
            "mapedFileSizeConsumeQueue": self.consume_queue_units * unit_bytes,
            "maxHashSlotNum": self.index_slots,
            "maxIndexNum": self.index_entries,
            "mappedFileSizeTimerLog": 1 << 20,
        }


@dataclass(slots=True)
class Broker:
    """An upstream broker over ``store``. May be started again after ``stop`` or ``kill``, on the same port.

    Its file lengths must be those of the store: upstream refuses a directory whose files have other lengths.
    ``settings`` are added to, or replace, what is written into ``home/broker.properties``.
    """

    store: Path
    home: Path
    namesrv: str
    version: str = PEER_VERSION
    sizes: StoreSizes = StoreSizes()
    flush: str = "ASYNC_FLUSH"
    settings: Mapping[str, object] = field(default_factory=dict)
    _port: int = 0
    _jvm: Jvm | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def properties(self) -> dict[str, object]:
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": self.namesrv,
            "listenPort": self._port,
            "haListenPort": self._port + 1,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **self.sizes.properties(),
            "flushDiskType": self.flush,
            "brokerRole": "ASYNC_MASTER",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "defaultTopicQueueNums": 4,
            "timerWheelEnable": "false",
            "flushConsumerOffsetInterval": 1000,
            # A machine that is busy or almost full must not change what a test sees.
            "brokerFastFailureEnable": "false",
            "osPageCacheBusyTimeOutMills": 60_000,
            "diskMaxUsedSpaceRatio": 99,
            "diskSpaceCleanForciblyRatio": 99,
            "diskSpaceWarningLevelRatio": 99,
            **{
                f"{pool}ThreadPoolNums": 2
                for pool in (
                    "sendMessage", "putMessageFuture", "pullMessage", "litePullMessage", "ackMessage", "queryMessage",
                    "processReplyMessage", "adminBroker", "clientManage", "consumerManage", "loadBalanceProcessor",
                    "endTransaction", "recover",
                )
            },
            **self.settings,
        }  # fmt: skip

    def start(self) -> None:
        """Starts it and waits until it has recovered the store and listens. Raises PeerFailed when it refuses."""
        self.home.mkdir(parents=True, exist_ok=True)
        fixed = self._port != 0
        for attempt in range(5):
            if not fixed:
                # Upstream also listens two below the port, and on the next one for replicas.
                self._port = _free_ports(-2, 1)
            jvm = Jvm("broker", self.home, version=self.version, heap_mb=384)
            self._jvm = jvm
            file = self.home / "broker.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
            written = jvm.out.stat().st_size if jvm.out.exists() else 0
            jvm.start("org.apache.rocketmq.broker.BrokerStartup", "-c", str(file))
            try:
                jvm.wait_for_output("boot success", since=written)
                return
            except PeerFailed as failure:
                jvm.kill()
                # Somebody took the port between our look and the broker's.
                if fixed or "BindException" not in str(failure) or attempt == 4:
                    raise

    def stop(self) -> None:
        """A clean stop, as of ``mqshutdown broker``."""
        if self._jvm is not None:
            self._jvm.stop()

    def kill(self) -> None:
        """kill -9."""
        if self._jvm is not None:
            self._jvm.kill()

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._jvm is not None
        assert self._jvm.process is not None
        return self._jvm.process.pid

    @property
    def log_text(self) -> str:
        """Everything that the broker has logged in all of its starts."""
        return "" if self._jvm is None or not self._jvm.log.exists() else self._jvm.log.read_text(errors="replace")

    def offset_message_id(self, physical_offset: int) -> str:
        """The id by which a client asks this broker for the record at ``physical_offset``."""
        return (
            (socket.inet_aton("127.0.0.1") + self._port.to_bytes(4, "big") + physical_offset.to_bytes(8, "big"))
            .hex()
            .upper()
        )


# -------------------------------------------------------------------------------------------------------------- client


class Client:
    """The official Java client, in one JVM for a whole session. Not for use by several threads at once."""

    def __init__(self, home: Path, namesrv: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._jvm = Jvm("client", home, version=PEER_VERSION, heap_mb=192, log_level="WARN")
        self._namesrv = namesrv
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answer: Iterator[Row] = iter(())
        self._process = self._jvm.start("io.cometmq.interop.Peer", pipes=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def close(self) -> None:
        """Ends the JVM: its input ends, and so does it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
        self._reader.join()
        self._process.stdout.close()

    def ask(self, op: str, **arguments: object) -> Iterator[Row]:
        """Sends one request and yields its rows as they come. What was not read of the request before is dropped."""
        for _ in self._answer:
            pass
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, "namesrv": self._namesrv, **arguments}) + "\n")
        self._process.stdin.flush()
        self._answer = self._read_answer(op)
        return self._answer

    def _read_answer(self, op: str) -> Iterator[Row]:
        while True:
            try:
                line = self._lines.get(timeout=ANSWER_LIMIT_S)
            except queue.Empty:
                raise PeerFailed(f"client: no answer to {op} within {ANSWER_LIMIT_S} s") from None
            if not line:
                raise PeerFailed(f"client: ended during {op}\n{_tail(self._jvm.out)}")
            answer = json.loads(line)
            if "error" in answer:
                raise PeerFailed(f"client: {op}: {answer['error']}\n{answer['trace']}")
            if "done" in answer:
                return
            yield answer["row"]

    # The requests, typed. See the Java classes for what each does.

    def await_broker(self, broker: Broker) -> None:
        """Returns when the name server knows the broker and the broker answers."""
        list(self.ask("await_broker", address=broker.address, timeout_ms=int(START_LIMIT_S * 500)))

    def create_topic(self, broker: Broker, topic: str, *, queues: int) -> None:
        list(self.ask("create_topic", address=broker.address, topic=topic, queues=queues))

    def send(
        self,
        messages: Iterable[MessageSpec | Sequence[MessageSpec]],
        *,
        compression: str = "ZLIB",
        compress_over_bytes: int = 4096,
    ) -> Iterator[Row]:
        """Sends in order; a nested sequence is one batch. Yields a row per message as it is acknowledged."""
        return self.ask(
            "send",
            messages=[_wire(m) if isinstance(m, MessageSpec) else [_wire(each) for each in m] for m in messages],
            compression=compression,
            compress_over_bytes=compress_over_bytes,
        )

    def pull_all(self, topic: str, *, tags: str | None = None, with_body: bool = False) -> list[Row]:
        """Every message of the topic, by queue and offset."""
        return list(self.ask("pull_all", topic=topic, tags=tags, with_body=with_body))

    def group_consume(self, group: str, topic: str, *, count: int, timeout_ms: int = 30_000) -> list[Row]:
        """Up to ``count`` messages through the group's own progress, committed."""
        return list(self.ask("group_consume", group=group, topic=topic, count=count, timeout_ms=timeout_ms))

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Queue id to (first offset, next offset)."""
        return {row["queue"]: (row["min_offset"], row["max_offset"]) for row in self.ask("offsets", topic=topic)}

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Queue id to the group's committed offset."""
        return {row["queue"]: row["consumer_offset"] for row in self.ask("group_offsets", group=group, topic=topic)}

    def search_offset(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Queue id to the offset of the first message stored at or after the time."""
        return {
            row["queue"]: row["offset"] for row in self.ask("search_offset", topic=topic, timestamp_ms=timestamp_ms)
        }

    def query_key(self, topic: str, key: str) -> list[Row]:
        return list(self.ask("query_key", topic=topic, key=key))

    def query_unique_key(self, topic: str, key: str) -> list[Row]:
        return list(self.ask("query_unique_key", topic=topic, key=key))

    def view(self, topic: str, offset_message_id: str) -> Row:
        (row,) = self.ask("view", topic=topic, id=offset_message_id)
        return row


def _wire(spec: MessageSpec) -> Row:
    return {
        "topic": spec.topic,
        "body": base64.b64encode(spec.body).decode(),
        "tags": spec.tags,
        "keys": " ".join(spec.keys) or None,
        "properties": dict(spec.properties),
        "queue": spec.queue,
    }


class Peer:
    """Name server and client of a session, and brokers as tests ask for them; leaving the context ends all of them."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._brokers: list[Broker] = []
        self._namesrv = NameServer(home / "namesrv")
        self._namesrv.start()
        try:
            self.client = Client(home / "client", self._namesrv.address)
        except BaseException:
            self._namesrv.stop()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_brokers()
        self.client.close()
        self._namesrv.stop()

    def kill_brokers(self) -> None:
        """Ends what a test left running, so that the next one does not share the machine with it."""
        for broker in self._brokers:
            broker.kill()
        self._brokers.clear()

    @contextlib.contextmanager
    def broker(
        self,
        store: Path,
        *,
        version: str = PEER_VERSION,
        sizes: StoreSizes = StoreSizes(),
        flush: str = "ASYNC_FLUSH",
        settings: Mapping[str, object] | None = None,
    ) -> Iterator[Broker]:
        """A running broker over ``store``, known to the name server; stopped cleanly at the end unless killed."""
        home = self._home / f"broker-{len(list(self._home.glob('broker-*')))}"
        broker = Broker(store, home, self._namesrv.address, version, sizes, flush, settings or {})
        self._brokers.append(broker)
        broker.start()
        try:
            self.client.await_broker(broker)
            yield broker
            broker.stop()
        finally:
            broker.kill()
