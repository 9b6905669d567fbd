"""Checks: few descriptors are reported, none for clients is an error, refused connections are logged."""

from __future__ import annotations

import resource
import socket
from collections.abc import Mapping
from queue import SimpleQueue

import pytest

from cometmq.errors import LimitReached
from cometmq.remoting.connection_room import RefusalLog, check_descriptors
from cometmq.remoting.server import RemotingServer, ServerLimits


def limit(monkeypatch: pytest.MonkeyPatch, descriptors: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))


@pytest.mark.parametrize(
    ("descriptors", "wanted", "fit"),
    [(256, 0, 128), (600, 0, 450), (1024, 0, None), (1024, 1000, 768), (256, 100, None), (-1, 1000, None)],
)
def test_few_connections_are_reported(
    descriptors: int,
    wanted: int,
    fit: int | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit(monkeypatch, descriptors)
    check_descriptors(wanted)
    found = [(record.__dict__["open_files_max"], record.__dict__["connections_max"]) for record in caplog.records]
    assert found == ([] if fit is None else [(descriptors, fit)])


@pytest.mark.parametrize("descriptors", [40, 128])
def test_server_that_can_serve_nobody_does_not_start(descriptors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, descriptors)
    with pytest.raises(LimitReached, match=f"may open {descriptors} files"):
        RemotingServer(["127.0.0.1:0"])


def test_refused_connections_are_logged_once_a_look(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    for refused in (0, 3, 3, 5):
        log.note({"refused": refused, "open": 7})
    assert [(record.__dict__["refused"], record.__dict__["open"]) for record in caplog.records] == [(3, 7), (2, 7)]


def test_a_server_logs_connections_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: SimpleQueue[int] = SimpleQueue()

    def note(self: RefusalLog, counters: Mapping[str, int]) -> None:
        if counters["refused"]:
            noted.put(counters["refused"])

    monkeypatch.setattr(RefusalLog, "note", note)
    monkeypatch.setattr("cometmq.remoting.server._REFUSALS_S", 0.01)
    with RemotingServer(["127.0.0.1:0"], limits=ServerLimits(connections_max=1)) as server:
        server.start({})
        address = ("127.0.0.1", server.ports[0])
        with socket.create_connection(address), socket.create_connection(address) as second:
            second.settimeout(60)
            assert second.recv(1) == b"", "closed at once"
            assert noted.get(timeout=60) == 1
