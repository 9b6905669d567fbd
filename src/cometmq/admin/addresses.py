"""Which cluster is meant where none is named: the environment's."""

from __future__ import annotations

import os

from cometmq.admin.servers import Servers
from cometmq.errors import InvalidArgument
from cometmq.remoting.addresses import parse_addresses
from cometmq.store.options import a_text

__all__ = ["NAMESRV_DEFAULT", "NAMESRV_VARIABLES", "namesrv_of_environment", "servers_of"]

NAMESRV_DEFAULT = "127.0.0.1:9876"
NAMESRV_VARIABLES = ("COMETMQ_NAMESRV", "NAMESRV_ADDR")
"""Environment variables that name the name servers; the second one is upstream's."""


def namesrv_of_environment() -> str:
    """Return the name servers that the environment names, or the default."""
    return next((os.environ[name] for name in NAMESRV_VARIABLES if os.environ.get(name)), NAMESRV_DEFAULT)


def servers_of(*, namesrv: str | None, broker: str | None, timeout_ms: int) -> Servers:
    """Return the way to a cluster.

    Raises:
        InvalidArgument: both were given, or an address is invalid.
    """
    for name, value in (("namesrv", namesrv), ("broker", broker)):
        if value is not None:
            a_text(value, name, ": write host:port")
    if namesrv is not None and broker is not None:
        raise InvalidArgument("give name servers or a broker, not both")
    if broker is not None:
        return Servers(broker=broker, timeout_ms=timeout_ms)
    addresses = parse_addresses(namesrv if namesrv is not None else namesrv_of_environment())
    return Servers(namesrv=addresses, timeout_ms=timeout_ms)
