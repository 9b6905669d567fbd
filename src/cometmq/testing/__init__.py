"""A name server and brokers inside a test's own process, on free ports, for tests of programs that use RocketMQ.

>>> import cometmq.testing
>>> with cometmq.testing.cluster() as cluster:  # doctest: +SKIP
...     print(cluster.name_server_address, cluster.broker.address)

For pytest there is a fixture in :mod:`cometmq.testing.pytest_plugin`.
"""

from __future__ import annotations

from cometmq.testing.clusters import Cluster, cluster

__all__ = ["Cluster", "cluster"]
