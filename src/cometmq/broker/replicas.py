"""Questions about replicas (907, 908, 1007), answered as upstream's master answers that has none and no controller.

Threads: the event loop's; the look at the log's end runs apart from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command

__all__ = ["Replicas"]

_NO_CLIENT = {
    "activated": False,
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}


class Replicas:
    """A master without slaves."""

    def __init__(self, log_end: Callable[[], int]) -> None:
        """Take how to ask for the end of the log, in bytes."""
        self._log_end = log_end

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.GET_BROKER_HA_STATUS: self._show,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self._keep_flush_offset,
            RequestCode.GET_BROKER_EPOCH_CACHE: self._show_epochs,
        }

    async def _show(self, request: Command, caller: Caller) -> Command:
        status = {
            "haClientRuntimeInfo": _NO_CLIENT,
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": await caller.apart(self._log_end),
        }
        return ok(request, body=json.dumps(status, separators=(",", ":")).encode("ascii"))

    def _keep_flush_offset(self, request: Command, caller: Caller) -> Command:
        """Change nothing: only slaves keep their master's flush offset."""
        return ok(request)

    def _show_epochs(self, request: Command, caller: Caller) -> Command:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode")
