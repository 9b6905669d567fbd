"""Programs beside our tests: a real Apache RocketMQ in child JVMs, by Maven, and ours in processes of their own.

Waiting is always for a condition (a line of output, an answer, the end of a process) with a limit, never for a time.
Only processes started here are ended, by their own pid.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
JAVA_PROJECT = Path(__file__).resolve().parent / "java"
BUILD = Path(os.environ.get("CMQ_JAVA_BUILD", PROJECT / "build" / "java"))

COMPILED_VERSION = "5.3.3"
"""The version our Java program is compiled against."""

PEER_VERSION = os.environ.get("CMQ_JAVA_RELEASE") or COMPILED_VERSION
"""The usual version of client and servers: ``make test-java RELEASE=5.5.0`` takes another one."""

START_LIMIT_S = 90.0
STOP_LIMIT_S = 60.0
ANSWER_LIMIT_S = 90.0
POLL_STEP_S = 0.02


class PeerMissing(Exception):
    """Java or Maven is not here, or the jars cannot be had; the text says which and is the reason for a skip."""


class PeerFailed(Exception):
    """The broker, the name server or the client answered with an error or ended; the text has the end of its log."""


# ---------------------------------------------------------------------------------------------------------------- jars


def java() -> str:
    java = shutil.which("java")
    if java is None:
        raise PeerMissing("Java 17 or newer is not installed (Debian: apt-get install openjdk-17-jdk-headless)")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', text)
    if found is None or int(found.group(1)) < 17:
        raise PeerMissing(f"Java 17 or newer is needed, found: {text.splitlines()[0] if text else 'nothing'}")
    return java


def maven() -> str:
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
    command = [maven(), "-q", "-B", "-f", str(JAVA_PROJECT / "pom.xml"), f"-Dinterop.build={BUILD}", *goals]
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


def classpath(version: str) -> str:
    """Builds once what ``version`` needs, under a lock against a second test run, and names the class path.

    Our program stands in front; for another version than its own, whoever runs it takes care of what is missing there.
    """
    java()
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _fingerprint()
        # Programs that run over the other version's jars are compiled with the first one's.
        for needed in dict.fromkeys((COMPILED_VERSION, version)):
            stamp = BUILD / f"stamp-{needed}"
            if stamp.exists() and stamp.read_text() == wanted:
                continue
            if needed == COMPILED_VERSION:
                _run_maven("compile", "dependency:copy-dependencies")
            else:
                _run_maven(f"-Drocketmq.version={needed}", "dependency:copy-dependencies")
            stamp.write_text(wanted)
    return f"{BUILD / 'peer' / 'classes'}:{BUILD / f'lib-{version}' / '*'}"


# ----------------------------------------------------------------------------------------------------------- processes


def logging_xml(path: Path, log: Path, level: str) -> None:
    path.write_text(
        '<configuration><appender name="file" class="ch.qos.logback.core.FileAppender">'
        f"<file>{log}</file><encoder><pattern>%d %p %t %c - %m%n</pattern></encoder></appender>"
        # Once a second each, and never of interest here.
        + "".join(
            f'<logger name="{name}" level="OFF"/>' for name in ("RocketmqWaterMark", "RocketmqPop", "RocketmqTraffic")
        )
        + f'<root level="{level}"><appender-ref ref="file"/></root></configuration>'
    )


def tail(path: Path, limit: int = 4000) -> str:
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
                    f"{self._name} ended with {self.process.returncode}\n{tail(self.out)}\n{tail(self.log)}"
                )
            if time.monotonic() > limit:
                raise PeerFailed(f"{self._name} is not up after {START_LIMIT_S} s\n{tail(self.out)}\n{tail(self.log)}")
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
                f"{self._name} did not stop within {STOP_LIMIT_S} s\n{tail(self.out)}\n{tail(self.log)}"
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
        logging_xml(self._xml, self.log, log_level)
        # RocketMQ 4.9 takes its logging from fixed names below ROCKETMQ_HOME, 5.x from a system property.
        fixed_name = {"broker": "broker", "namesrv": "namesrv", "client": "tools"}[name]
        shutil.copyfile(self._xml, home / "conf" / f"logback_{fixed_name}.xml")

    def start(
        self, main: str, *arguments: str, pipes: bool = False, properties: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts the class, with system properties; with ``pipes`` its standard input and output are the caller's."""
        command = [
            java(),
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
            # Else a server makes a key pair for a certificate of its own: a minute and more on a busy machine.
            "-Dtls.server.mode=disabled",
            *(f"-D{key}={value}" for key, value in (properties or {}).items()),
            "-cp",
            classpath(self._version),
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
