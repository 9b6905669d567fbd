"""Tests with a real RocketMQ as peer: they run when ``CMQ_JAVA`` is ``short`` or ``full``, see ``make test-java``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from interop.harness import Peer, PeerMissing

JAVA_TESTS_LIMIT_S = 300
"""A clean stop of the Java broker alone takes ten seconds, most of it upstream waiting for its own threads."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "java(full=False): needs a real RocketMQ; full: only in `make test-java`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mode = os.environ.get("CMQ_JAVA", "")
    if mode not in ("", "short", "full"):
        raise pytest.UsageError(f"CMQ_JAVA is {mode!r}; it must be short or full")
    for item in items:
        mark = item.get_closest_marker("java")
        if mark is None:
            continue
        item.add_marker(pytest.mark.timeout(JAVA_TESTS_LIMIT_S))
        if not mode:
            item.add_marker(pytest.mark.skip(reason="needs a real RocketMQ: run `make test-java`"))
        elif mode == "short" and mark.kwargs.get("full"):
            item.add_marker(pytest.mark.skip(reason="only in the full form: run `make test-java`"))


@pytest.fixture(scope="session")
def session_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """One name server and one client JVM for the session."""
    try:
        peer = Peer(tmp_path_factory.mktemp("java"))
    except PeerMissing as missing:
        pytest.skip(str(missing))
    with peer:
        yield peer


@pytest.fixture(scope="session")
def session_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """One landscape at a time, for all tests that run in it."""
    try:
        site = Peer(tmp_path_factory.mktemp("site"), request.param)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    with site:
        yield site


@pytest.fixture
def site(session_site: Peer) -> Iterator[Peer]:
    """The landscape that the test is parametrized with; nothing that it started is left behind it."""
    yield session_site
    session_site.client.clear_consumers()
    session_site.kill_brokers()


@pytest.fixture
def peer(session_peer: Peer) -> Iterator[Peer]:
    """The session's peer; brokers that a failed test left running are ended behind it."""
    yield session_peer
    session_peer.kill_brokers()
