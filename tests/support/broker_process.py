"""A broker in a process of its own, registered with a name server in the test's, to be killed and started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cometmq.namesrv.server import NamesrvServer
from cometmq.namesrv.settings import NamesrvSettings

__all__ = ["BrokerProcess", "broker_process"]

_SMALL: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}


class BrokerProcess:
    """One broker at a time on a store, at a new port with each start."""

    def __init__(self, path: Path, name_server_address: str, settings: Mapping[str, object]) -> None:
        self.path = path
        self.name_server_address = name_server_address
        self._settings = {**_SMALL, **settings}
        self._log = path.with_name(f"{path.name}.log")
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        """Where it listens since its last start."""

    def start(self) -> None:
        """Start it, and wait until it is served and registered."""
        chosen = [text for name, value in self._settings.items() for text in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "cometmq", "broker", str(self.path), "--listen", "127.0.0.1:0"]
        command += ["--name", "broker-a", "--namesrv", self.name_server_address, *chosen]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "listening on" in line, (
            f"the broker printed {line!r} and ended with {self._process.wait()}: {self._log.read_text()[-2_000:]}"
        )
        self.address = line.partition("listening on")[2].split()[0].rstrip(";,.")

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop_and_start(self) -> None:
        """Let it end as a service manager does, and come back."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=60)
            assert self._process.returncode == 0
            self._process = None
        self.start()

    def kill_and_start(self) -> None:
        """Let it die and come back."""
        self.kill()
        self.start()


@contextmanager
def broker_process(path: Path, **settings: object) -> Iterator[BrokerProcess]:
    """Run a name server here and a broker on a store of its own; both end with the block."""
    with NamesrvServer(NamesrvSettings(listen_port=0)) as name_server:
        broker = BrokerProcess(path, name_server.address, settings)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()
