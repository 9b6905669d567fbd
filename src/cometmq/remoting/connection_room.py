"""How many connections a process's descriptors allow, and what the log has where that is few.

The engine keeps a quarter of the descriptors, 128 at least, for files (``net_connections_that_fit`` in ``csrc/net``).
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Mapping

from cometmq.errors import LimitReached

__all__ = ["RefusalLog", "check_descriptors"]

_log = logging.getLogger("cometmq.remoting")

_RESERVED_MIN, _RESERVED_MAX = 128, 4096
_FEW = 512
"""Fewer connections are worth a line where no other number was asked for."""


def check_descriptors(connections_max: int) -> None:
    """Warn where the process may have few connections.

    Args:
        connections_max: the wanted number; 0 where nobody asked for one.

    Raises:
        LimitReached: it can serve nobody.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return
    fit = descriptors - min(max(descriptors // 4, _RESERVED_MIN), _RESERVED_MAX)
    if fit <= 0:
        raise LimitReached(
            f"the process may open {descriptors:,} files (ulimit -n), and keeps {_RESERVED_MIN} for its own: "
            f"none is left for a connection; raise the limit, to 65,536 for thousands of clients"
        )
    if fit < (connections_max or _FEW):
        _log.warning(
            "few connections fit into the limit of open files; raise it (ulimit -n, LimitNOFILE)",
            extra={"open_files_max": descriptors, "connections_max": fit},
        )


class RefusalLog:
    """Logs connections that were closed at once for a limit: a line for all since the last look."""

    def __init__(self) -> None:
        """Begin with none."""
        self._refused = 0

    def note(self, counters: Mapping[str, int]) -> None:
        """Look at the sockets' totals."""
        refused, before = counters["refused"], self._refused
        self._refused = refused
        if refused > before:
            _log.warning(
                "connections refused: connectionsMax, connectionsPerAddressMax or the limit of open files is reached",
                extra={"refused": refused - before, "open": counters["open"]},
            )
