"""A fixture for pytest. Put ``pytest_plugins = ["cometmq.testing.pytest_plugin"]`` into the top ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cometmq.testing.clusters import Cluster, cluster

__all__ = ["cometmq_cluster"]


@pytest.fixture
def cometmq_cluster() -> Iterator[Cluster]:
    """A name server and a broker of the test's own, on free ports."""
    with cluster() as running:
        yield running
