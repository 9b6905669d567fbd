"""Tests with a real RocketMQ as peer: they run when ``CMQ_JAVA`` is ``short`` or ``full``, see ``make test-java``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.processes import PeerMissing
from interop.sites import Landscape, Maker, Peer, Site

JAVA_TESTS_LIMIT_S = 300
"""A clean stop of the Java broker alone takes ten seconds, most of it upstream waiting for its own threads."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "java(full=False): needs a real RocketMQ; full: only in `make test-java`")
    config.addinivalue_line("markers", "runs_in_make_test: needs none; left out of `make test-java-short`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that can run: the others are deselected, so that a skip means something."""
    mode = os.environ.get("CMQ_JAVA", "")
    if mode not in ("", "short", "full"):
        raise pytest.UsageError(f"CMQ_JAVA is {mode!r}; it must be short or full")
    left_out = [item for item in items if not _runs(item, mode)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _runs(item, mode)]
    for item in items:
        if item.get_closest_marker("java") is not None:
            item.add_marker(pytest.mark.timeout(JAVA_TESTS_LIMIT_S))


def _runs(item: pytest.Item, mode: str) -> bool:
    """Whether a test belongs to a form: without Java, ``short`` or ``full``."""
    if mode == "short" and item.get_closest_marker("runs_in_make_test"):
        return False
    mark = item.get_closest_marker("java")
    return mark is None or mode == "full" or (mode == "short" and not mark.kwargs.get("full"))


def _started(folder: Path, landscape: Landscape) -> Iterator[Peer]:
    try:
        peer = Peer(folder, landscape)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    with peer:
        yield peer


@pytest.fixture(scope="session")
def session_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """One name server and one client JVM for the session."""
    yield from _started(tmp_path_factory.mktemp("java"), Landscape())


@pytest.fixture(scope="session")
def session_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """One landscape at a time, for all tests that run in it."""
    yield from _started(tmp_path_factory.mktemp("site"), request.param)


@pytest.fixture
def site(session_site: Peer) -> Iterator[Peer]:
    """The landscape that the test is parametrized with; nothing that it started is left behind it."""
    yield session_site
    session_site.client.clear_consumers()
    session_site.kill_brokers()


def _opened(request: pytest.FixtureRequest, folder: Path) -> Iterator[Peer]:
    """The landscape that a fixture is parametrized with; upstream's of 5.3.3 is the session's peer."""
    if request.param == Landscape():
        yield request.getfixturevalue("session_peer")
    else:
        yield from _started(folder, request.param)


@pytest.fixture(scope="session")
def session_servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Servers for our client: upstream's, with the Java client beside them; or ours, which need no Java."""
    folder = tmp_path_factory.mktemp("servers")
    if request.param.broker is Maker.JAVA:
        yield from _opened(request, folder)
        return
    with Site(folder, request.param) as site:
        yield site


@pytest.fixture(scope="session")
def session_company(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Servers with the Java client beside ours."""
    yield from _opened(request, tmp_path_factory.mktemp("company"))


@pytest.fixture
def servers(session_servers: Site) -> Iterator[Site]:
    """Servers for a test of our client."""
    yield session_servers
    session_servers.kill_brokers()


@pytest.fixture
def company(session_company: Peer) -> Iterator[Peer]:
    """Servers for a test of our client and the Java client."""
    yield session_company
    session_company.client.clear_consumers()
    session_company.kill_brokers()


@pytest.fixture
def peer(session_peer: Peer) -> Iterator[Peer]:
    """The session's peer without any broker; those that a failed test left running are ended behind it."""
    session_peer.end_shared_broker()
    yield session_peer
    session_peer.kill_brokers()
