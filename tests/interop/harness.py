"""A real Apache RocketMQ as the peer of our tests: its name server, its broker and its official client, as child JVMs.

Everything listens on 127.0.0.1 with ports that were free a moment before; everything written goes to the directory that
the caller names. Waiting is always for a condition (a line of output, an answer, the end of a process) with a limit,
never for a time. Only processes started here are ended, by their own pid.

Heap sizes and thread pools are kept small: a broker takes about 250 MB, the name server and the client 150 MB each.
"""

from __future__ import annotations

import base64
import contextlib
import enum
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
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import cometmq.admin
from interop.patterns import MessageSpec

PROJECT = Path(__file__).resolve().parents[2]
JAVA_PROJECT = Path(__file__).resolve().parent / "java"
BUILD = Path(os.environ.get("CMQ_JAVA_BUILD", PROJECT / "build" / "java"))

PEER_VERSION = "5.3.3"
"""The version our Java program is compiled against, and the usual one of client and servers."""

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
    """Builds once what ``version`` needs, under a lock against a second test run, and names the class path.

    Our program stands in front; for another version than its own, whoever runs it takes care of what is missing there.
    """
    _java()
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _fingerprint()
        # Whatever runs over the other version's jars is compiled with the first one's.
        for needed in dict.fromkeys((PEER_VERSION, version)):
            stamp = BUILD / f"stamp-{needed}"
            if stamp.exists() and stamp.read_text() == wanted:
                continue
            if needed == PEER_VERSION:
                _run_maven("compile", "dependency:copy-dependencies")
            else:
                _run_maven(f"-Drocketmq.version={needed}", "dependency:copy-dependencies")
            stamp.write_text(wanted)
    return f"{BUILD / 'peer' / 'classes'}:{BUILD / f'lib-{version}' / '*'}"


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


class Child:
    """A child process. Output goes to ``home/NAME.out``, what it logs for itself to ``home/NAME.log``."""

    def __init__(self, name: str, home: Path) -> None:
        self._name = name
        self._home = home
        self.out = home / f"{name}.out"
        self.log = home / f"{name}.log"
        self.process: subprocess.Popen[str] | None = None
        home.mkdir(parents=True, exist_ok=True)

    def _spawn(
        self, command: list[str], *, pipes: bool = False, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts the command; with ``pipes`` its standard input and output are the caller's."""
        # Where util-linux is there, a test run that is killed takes its children along.
        setpriv = shutil.which("setpriv")
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "KILL", *command]
        variables = {**os.environ, **(environment or {})}
        variables.pop("NAMESRV_ADDR", None)
        with self.out.open("a") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out,
                stderr=out,
                cwd=self._home,
                env=variables,
                text=True,
                encoding="utf-8",
            )
        return self.process

    def wait_until(self, is_up: Callable[[], bool]) -> None:
        """Waits for a condition. Raises PeerFailed when the process ends first."""
        assert self.process is not None
        limit = time.monotonic() + START_LIMIT_S
        while True:
            ended = self.process.poll() is not None
            if is_up():
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

    def wait_for_output(self, text: str, *, since: int) -> None:
        """Waits until ``text`` stands in the output behind ``since``. Raises PeerFailed when the process ends first."""

        def is_there() -> bool:
            with self.out.open(errors="replace") as out:
                out.seek(since)
                return text in out.read()

        self.wait_until(is_there)

    def stop(self) -> None:
        """Asks the process to end (SIGTERM) and waits; one that hangs is killed and reported."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PeerFailed(
                f"{self._name} did not stop within {STOP_LIMIT_S} s\n{_tail(self.out)}\n{_tail(self.log)}"
            ) from None

    def kill(self) -> None:
        """kill -9: no shutdown hook runs, dirty pages stay with the system."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


class Jvm(Child):
    """A JVM with the classes of one version of RocketMQ."""

    def __init__(self, name: str, home: Path, *, version: str, heap_mb: int, log_level: str = "INFO") -> None:
        super().__init__(name, home)
        self._version = version
        self._heap_mb = heap_mb
        (home / "conf").mkdir(exist_ok=True)
        self._xml = home / "conf" / f"{name}.xml"
        _logging_xml(self._xml, self.log, log_level)
        # RocketMQ 4.9 takes its logging from fixed names below ROCKETMQ_HOME, 5.x from a system property.
        fixed_name = {"broker": "broker", "namesrv": "namesrv", "client": "tools"}[name]
        shutil.copyfile(self._xml, home / "conf" / f"logback_{fixed_name}.xml")

    def start(
        self, main: str, *arguments: str, pipes: bool = False, properties: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts the class, with system properties; with ``pipes`` its standard input and output are the caller's."""
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
            *(f"-D{key}={value}" for key, value in (properties or {}).items()),
            "-cp",
            _classpath(self._version),
            main,
            *arguments,
        ]
        return self._spawn(command, pipes=pipes, environment={"ROCKETMQ_HOME": str(self._home)})


class OurProgram(Child):
    """A ``cometmq`` command as a process of its own."""

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return self._spawn([sys.executable, "-m", "cometmq", *arguments])

    def wait_for_port(self, port: int) -> None:
        """Waits until the port of 127.0.0.1 takes connections."""

        def is_open() -> bool:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.wait_until(is_open)


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

    def __init__(self, home: Path, *, version: str = PEER_VERSION) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._jvm = Jvm("namesrv", home, version=version, heap_mb=64)
        self._home = home
        self._port = 0
        self.address = ""

    def start(self) -> None:
        """Starts it; on the same port, where it was started before."""
        port = self._port = self._port or _free_ports()
        settings = self._home / "namesrv.properties"
        settings.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
        written = self._jvm.out.stat().st_size if self._jvm.out.exists() else 0
        self._jvm.start("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(settings))
        self._jvm.wait_for_output("boot success", since=written)
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        # It holds nothing that is worth a clean end.
        self._jvm.kill()


class OurNameServer:
    """CometMQ's name server, as a process."""

    def __init__(self, home: Path) -> None:
        self._program = OurProgram("namesrv", home)
        self._port = 0
        self.address = ""

    def start(self) -> None:
        """As :meth:`NameServer.start`."""
        port = self._port = self._port or _free_ports()
        self.address = f"127.0.0.1:{port}"
        self._program.start("namesrv", "--listen", self.address)
        self._program.wait_for_port(port)

    def stop(self) -> None:
        self._program.stop()


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
    name: str = "broker-a"
    _port: int = 0
    _process: Child | None = None
    _PORT_TAKEN: ClassVar[str] = "BindException"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def properties(self) -> dict[str, object]:
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.name,
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
            file = self.home / "broker.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
            try:
                self._launch(file)
                return
            except PeerFailed as failure:
                self.kill()
                # Somebody took the port between our look and the broker's.
                if fixed or self._PORT_TAKEN not in str(failure) or attempt == 4:
                    raise

    def _launch(self, properties: Path) -> None:
        jvm = Jvm("broker", self.home, version=self.version, heap_mb=384)
        self._process = jvm
        written = jvm.out.stat().st_size if jvm.out.exists() else 0
        jvm.start("org.apache.rocketmq.broker.BrokerStartup", "-c", str(properties))
        jvm.wait_for_output("boot success", since=written)

    def stop(self) -> None:
        """A clean stop, as of ``mqshutdown broker``."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None
        assert self._process.process is not None
        return self._process.process.pid

    @property
    def log_text(self) -> str:
        """Everything that the broker has logged in all of its starts."""
        return (
            ""
            if self._process is None or not self._process.log.exists()
            else self._process.log.read_text(errors="replace")
        )

    def await_written(self, group: str, topic: str, count: int) -> None:
        """Returns when the group's progress, all queues together, stands in the store's own file."""
        file = self.store / "config" / "consumerOffset.json"
        pattern = re.compile(re.escape(f'"{topic}@{group}":') + r"\s*\{([^}]*)\}")
        limit = time.monotonic() + START_LIMIT_S
        while True:
            found = pattern.search(file.read_text()) if file.exists() else None
            progress = sum(int(offset) for offset in re.findall(r":\s*(\d+)", found.group(1))) if found else 0
            if progress == count:
                return
            if time.monotonic() > limit:
                raise PeerFailed(f"{file} has {progress} for {group} in {topic} after {START_LIMIT_S} s, not {count}")
            time.sleep(POLL_STEP_S)

    def offset_message_id(self, physical_offset: int) -> str:
        """The id by which a client asks this broker for the record at ``physical_offset``."""
        return (
            (socket.inet_aton("127.0.0.1") + self._port.to_bytes(4, "big") + physical_offset.to_bytes(8, "big"))
            .hex()
            .upper()
        )


class OurBroker(Broker):
    """CometMQ's broker, as a process, with the very properties file that upstream's broker would be given."""

    _PORT_TAKEN: ClassVar[str] = "in use"

    def _launch(self, properties: Path) -> None:
        program = OurProgram("broker", self.home)
        self._process = program
        program.start("broker", str(self.store), "--config", str(properties))
        program.wait_for_port(self._port)


# -------------------------------------------------------------------------------------------------------------- client


class Headers(enum.Enum):
    """How a client writes the headers of its requests; the answers come in the same form."""

    JSON = "JSON"
    ROCKETMQ = "ROCKETMQ"


class Client:
    """The official Java client, in one JVM for a whole session. Not for use by several threads at once.

    Attributes:
        namesrv: the name server that the next request goes to.
        version: the client's version.
        home: the folder that it takes for its user's home.
    """

    def __init__(
        self, home: Path, namesrv: str, *, version: str = PEER_VERSION, headers: Headers = Headers.JSON
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._jvm = Jvm("client", home, version=version, heap_mb=192, log_level="WARN")
        self.namesrv = namesrv
        self.version = version
        self.home = home
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answer: Iterator[Row] = iter(())
        self._process = self._jvm.start(
            "io.cometmq.interop.Peer", pipes=True, properties={"rocketmq.serialize.type": headers.value}
        )
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
        self._process.stdin.write(json.dumps({"op": op, "namesrv": self.namesrv, **arguments}) + "\n")
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

    def create_topic(self, broker: Broker, topic: str, *, queues: int, in_all: int | None = None) -> None:
        """Creates the topic and waits until its route has so many queues, with those of other brokers ``in_all``."""
        route = queues if in_all is None else in_all
        list(self.ask("create_topic", address=broker.address, topic=topic, queues=queues, route_queues=route))

    def await_topic(self, topic: str) -> None:
        """Returns when the name server has a route for the topic, which a broker makes by itself."""
        list(self.ask("await_topic", topic=topic))

    def send(
        self,
        messages: Iterable[MessageSpec | Sequence[MessageSpec]],
        *,
        mode: str = "sync",
        compression: str | None = None,
        compress_over_bytes: int = 4096,
        max_message_bytes: int = 4 << 20,
    ) -> Iterator[Row]:
        """Sends in order; a nested sequence is one batch. Yields a row per message as it is acknowledged.

        Args:
            messages: what to send.
            mode: ``sync``, ``async`` or ``oneway``.
            compression: ``ZLIB``, ``LZ4`` or ``ZSTD``; None for the client's own choice.
            compress_over_bytes: shorter bodies go as they are.
            max_message_bytes: longer bodies the client refuses itself.
        """
        return self.ask(
            "send",
            messages=[_wire(m) if isinstance(m, MessageSpec) else [_wire(each) for each in m] for m in messages],
            mode=mode,
            compression=compression,
            compress_over_bytes=compress_over_bytes,
            max_message_bytes=max_message_bytes,
        )

    def pull_all(self, topic: str, *, tags: str | None = None, with_body: bool = False) -> list[Row]:
        """Every message of the topic, by queue and offset."""
        return list(self.ask("pull_all", topic=topic, tags=tags, with_body=with_body))

    def group_consume(self, group: str, topic: str, *, count: int, timeout_ms: int = 30_000) -> list[Row]:
        """Up to ``count`` messages through the group's own progress, committed: the broker has the progress."""
        return list(self.ask("group_consume", group=group, topic=topic, count=count, timeout_ms=timeout_ms))

    def await_progress(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Returns when the broker has these offsets of the group, by queue, or later ones.

        Upstream's consumers tell it one way, without an answer, and a broker takes such commands from several threads.
        """
        limit = time.monotonic() + START_LIMIT_S
        with cometmq.admin.connect(namesrv=self.namesrv) as admin:
            while True:
                progress = admin.offsets.progress(group, topic=topic)
                found = {queue.queue_id: queue.consumer_offset for queue in progress.queues}
                behind = {queue: offset for queue, offset in offsets.items() if found.get(queue, -1) < offset}
                if not behind:
                    return
                if time.monotonic() > limit:
                    raise PeerFailed(f"{group} never came to {behind} of {topic} at the broker: {found}")

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

    def read_unique_id(self, unique_id: str) -> Row:
        """What the client's own code reads from a message's id: ``ip``, ``pid`` and ``made_at_ms``."""
        (row,) = self.ask("read_unique_id", id=unique_id)
        return row

    def mqadmin(self, *arguments: str) -> str:
        """What a command of ``mqadmin`` prints; the name server is added."""
        (row,) = self.ask("mqadmin", arguments=[*arguments, "-n", self.namesrv])
        return f"{row['out']}{row['errors']}"

    # Consumers that live on. Names are the test's own.

    def start_consumer(
        self,
        name: str,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        start_from: str = "FIRST_OFFSET",
        timestamp: str | None = None,
        is_orderly: bool = False,
        is_broadcasting: bool = False,
        max_reconsume_times: int = -1,
        fail_until: Mapping[str, int] | None = None,
        is_sql: bool = False,
        has_heartbeat_v2: bool = False,
        client_rebalance: bool = True,
        pop_invisible_ms: int = 60_000,
        hangs: bool = False,
        instance: str | None = None,
        strategy: Mapping[str, object] | None = None,
    ) -> str:
        """Starts a push consumer and returns its client id.

        Args:
            name: what the test calls it.
            group: its group.
            subscriptions: topic to tags.
            start_from: ``FIRST_OFFSET``, ``LAST_OFFSET`` or ``TIMESTAMP``.
            timestamp: for ``TIMESTAMP``, local time as ``yyyyMMddHHmmss``.
            is_orderly: whether it consumes queue by queue under locks.
            is_broadcasting: whether it gets everything, beside the others of its group.
            max_reconsume_times: tries before the dead letters; -1 is the client's own choice.
            fail_until: tag to the number of tries that fail.
            is_sql: whether the subscriptions are SQL92 expressions, not tags.
            has_heartbeat_v2: whether it sends heartbeats of the second kind; not in 4.9.
            client_rebalance: False lets brokers say which queues it has, and whether it pops them; not in 4.9.
            pop_invisible_ms: how long what it popped is invisible; 5 s to 5 min, anything else is a minute.
            hangs: whether its listener does not come back before it is released.
            instance: the second part of its client id; None for one of its own.
            strategy: how its group shares queues out (``Strategies.java``); None for the client's default.
        """
        (row,) = self.ask(
            "consumer_start",
            name=name,
            group=group,
            subscriptions=dict(subscriptions),
            timestamp=timestamp,
            orderly=is_orderly,
            broadcasting=is_broadcasting,
            max_reconsume_times=max_reconsume_times,
            fail_until=dict(fail_until or {}),
            sql=is_sql,
            heartbeat_v2=has_heartbeat_v2,
            client_rebalance=client_rebalance,
            pop_invisible_ms=pop_invisible_ms,
            hangs=hangs,
            instance=instance,
            strategy=strategy,
            **{"from": start_from},
        )
        return str(row["client_id"])

    def consumed(self, *names: str, count: int, timeout_ms: int = 60_000) -> list[Row]:
        """Everything that these consumers were given, as soon as they have consumed ``count`` messages."""
        return list(self.ask("consumer_rows", names=names, count=count, timeout_ms=timeout_ms))

    def committed(self, *names: str, topic: str, count: int) -> None:
        """Returns when these consumers have told the broker of ``count`` messages, all queues together."""
        list(self.ask("consumer_commit", names=names, topic=topic, count=count))

    def divided(self, *names: str, topic: str, queues: int) -> dict[str, list[str]]:
        """Consumer to its ``broker:queue``, as soon as each queue has one owner and each consumer a queue."""
        answer = self.ask("consumer_queues", names=names, topic=topic, total=queues)
        return {row["consumer"]: row["queues"] for row in answer}

    def owned(self, *names: str, topic: str) -> dict[str, set[str]]:
        """Consumer to the ``broker:queue`` that it has at this moment."""
        answer = self.ask("consumer_owned", names=names, topic=topic)
        return {row["consumer"]: set(row["queues"]) for row in answer}

    def popped(self, *names: str, topic: str) -> dict[str, set[str]]:
        """Consumer to the ``broker:queue`` that it pops at this moment; queue -1 is all of them."""
        answer = self.ask("consumer_popped", names=names, topic=topic)
        return {row["consumer"]: set(row["queues"]) for row in answer}

    def rebalance(self, *names: str) -> None:
        """Has consumers look at once which queues are theirs; they do so every 20 seconds."""
        list(self.ask("consumer_rebalance", names=names))

    def release(self, *names: str) -> None:
        """Lets consumers go on that hang."""
        list(self.ask("consumer_release", names=names))

    def pop(
        self,
        broker: Broker,
        group: str,
        topic: str,
        *,
        max_messages: int = 32,
        invisible_ms: int = 60_000,
        poll_ms: int = 0,
        queue_id: int = -1,
        in_order: bool = False,
    ) -> tuple[Row, list[Row]]:
        """One pop by the client's own request.

        Args:
            broker: who is asked.
            group, topic: for whom, and what.
            max_messages: at most so many.
            invisible_ms: how long nobody else gets them.
            poll_ms: how long the broker holds the request where it has nothing.
            queue_id: of one queue; -1 for all.
            in_order: whether it is a pop of an orderly group.

        Returns:
            A row with the ``status`` and the ``rest``, and the messages, each with its ``handle``.
        """
        head, *messages = self.ask(
            "pop",
            broker=broker.name,
            address=broker.address,
            group=group,
            topic=topic,
            max=max_messages,
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            queue=queue_id,
            order=in_order,
        )
        return head, messages

    def pop_ack(
        self, broker: Broker, group: str, topic: str, messages: Iterable[Row], *, in_batch: bool = False
    ) -> list[str]:
        """Acknowledges what :meth:`pop` gave, one by one or in one request; the status of each request."""
        handles = [message["handle"] for message in messages]
        rows = self.ask("pop_ack", address=broker.address, group=group, topic=topic, handles=handles, batch=in_batch)
        return [row["status"] for row in rows]

    def pop_change(self, broker: Broker, group: str, topic: str, message: Row, *, invisible_ms: int) -> Row:
        """Gives what :meth:`pop` gave another invisible time from now on; the message with its new handle."""
        (row,) = self.ask(
            "pop_change",
            address=broker.address,
            group=group,
            topic=topic,
            handle=message["handle"],
            invisible_ms=invisible_ms,
        )
        assert row["status"] == "OK"
        return {**message, "handle": row["handle"]}

    def assignment(
        self, broker: Broker, group: str, topic: str, *, client_id: str, strategy: str = "AVG"
    ) -> set[tuple[int, str]]:
        """Queue and mode of what a broker says a member is to have; none where it is to keep what it has."""
        rows = self.ask(
            "assignment", address=broker.address, group=group, topic=topic, client_id=client_id, strategy=strategy
        )
        return {(row["queue"], row["mode"]) for row in rows}

    def stop_consumers(self, *names: str) -> None:
        """A clean end: progress is with the broker, and the group knows."""
        list(self.ask("consumer_stop", names=names))

    def clear_consumers(self) -> None:
        """Ends what a test left alive, and forgets what was consumed."""
        list(self.ask("consumer_clear"))

    def consume_assigned(
        self, group: str, topic: str, *, count: int, seek: int | None = None, tags: str | None = None
    ) -> tuple[list[Row], dict[int, int]]:
        """Reads all queues of a topic by assignment and commits.

        Returns:
            The messages, and queue to committed offset.
        """
        answer = self.ask("assigned_consume", group=group, topic=topic, count=count, seek=seek, tags=tags)
        rows = list(answer)
        committed = {row["committed_queue"]: row["committed"] for row in rows if "committed_queue" in row}
        return [row for row in rows if "committed_queue" not in row], committed

    def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Moves the group to a time while it consumes. Queue to the offset where it is now."""
        answer = self.ask("reset_offset", group=group, topic=topic, timestamp_ms=timestamp_ms)
        return {row["queue"]: row["offset"] for row in answer}

    def consume_directly(self, group: str, client_id: str, topic: str, offset_message_id: str) -> str:
        """Has one consumer consume one message now; its answer."""
        (row,) = self.ask("consume_directly", group=group, client_id=client_id, topic=topic, id=offset_message_id)
        return str(row["result"])

    def running_info(self, group: str, client_id: str, *, with_stacks: bool = False) -> Row:
        """What a consumer says of itself."""
        (row,) = self.ask("running_info", group=group, client_id=client_id, jstack=with_stacks)
        return row


def _wire(spec: MessageSpec) -> Row:
    return {
        "topic": spec.topic,
        "body": base64.b64encode(spec.body).decode(),
        "tags": spec.tags,
        "keys": " ".join(spec.keys) or None,
        "properties": dict(spec.properties),
        "queue": spec.queue,
        "hash_key": spec.hash_key,
        "delay_level": spec.delay_level,
        "system_properties": dict(spec.system_properties),
    }
