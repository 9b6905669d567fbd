"""Unique message ids (``UNIQ_KEY``) as upstream's clients make them.

They are 32 hexadecimal digits.

Source: consumption specification 2.6; golden data.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from datetime import datetime

from cometmq._engine import UniqueIdCounter

__all__ = ["UniqueIds"]


class UniqueIds(UniqueIdCounter):
    """Makes unique message ids.

    They are made of the address, the process, when it began, the time in the month, and a counter.

    Thread safety: any thread. After a fork the child makes its own: the ids name the process.
    """

    def __init__(self) -> None:
        """Look the machine's address and the process up."""
        head = _address() + struct.pack(">HI", os.getpid() & 0xFFFF, time.monotonic_ns() >> 8 & 0xFFFFFFFF)
        super().__init__(head.hex().upper(), _month_of)


def _month_of(now_ms: int) -> tuple[int, int]:
    """Begin and end of the month of local time, in milliseconds since 1970."""
    begins = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    december = begins.month == 12
    ends = begins.replace(year=begins.year + december, month=1 if december else begins.month + 1)
    return int(begins.timestamp() * 1000), int(ends.timestamp() * 1000)


def _address() -> bytes:
    """The machine's own IPv4 address; that of the loopback where it cannot be found out."""
    try:
        return socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return socket.inet_aton("127.0.0.1")
