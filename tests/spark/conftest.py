"""One Spark session for the whole run, small and on loopback; without Java or pyspark the tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.spark import missing, new_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spark takes its time, the more beside other work. A longer limit of the command line, as under ASan, is kept."""
    limit = max(400, config.getoption("timeout") or 0)
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    stop_session(session)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's store is to be."""
    return tmp_path / "store"
