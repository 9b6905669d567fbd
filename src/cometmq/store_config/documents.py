"""The files that need no type of their own yet: read, changed and written again without losing anything.

A document is the decoded text as it is. Members that fastjson derives on writing (``dead``, ``empty``) stay as read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path

from cometmq.errors import InvalidArgument
from cometmq.store_config.fastjson import JsonObject, Layout
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile

__all__ = ["DOCUMENTS", "Document"]

DOCUMENTS: Mapping[str, Layout] = {
    "consumerFilter.json": Layout.PRETTY,
    "topicQueueMapping.json": Layout.PRETTY,
    "tieredStoreMetadata.json": Layout.PRETTY,
    "position-checkpoint": Layout.PRETTY,
    "timermetrics": Layout.BROWSER,
    "transactionMetrics": Layout.BROWSER,
}
"""Name of each file and the form upstream writes it in. All lie in ``config/`` but ``position-checkpoint``, which lies
in ``compaction/``."""


class Document(ManagedFile):
    """One such file. Threads and processes: see :class:`ManagedFile`."""

    def __init__(self, folder: Path, file_name: str, *, file_ops: FileOps = SYSTEM_FILE_OPS) -> None:
        """Start empty.

        Args:
            folder: the folder of the file.
            file_name: one of :data:`DOCUMENTS`.
            file_ops: the file operations to use.

        Raises:
            InvalidArgument: another name.
        """
        if file_name not in DOCUMENTS:
            raise InvalidArgument(f"{file_name!r} is none of {', '.join(DOCUMENTS)}")
        super().__init__(folder, file_name=file_name, file_ops=file_ops)
        self.layout = DOCUMENTS[file_name]
        self._reset()

    def _reset(self) -> None:
        self._content: JsonObject = {}

    def _decode(self, fields: Fields) -> Callable[[], None]:
        content = fields.others(())

        def take_over() -> None:
            self._content = content

        return take_over

    def _snapshot(self) -> Callable[[], JsonObject]:
        content = self._content  # replaced as a whole, never changed
        return lambda: deepcopy(content)

    def replace(self, content: JsonObject) -> None:
        """Make ``content`` the document. It is copied."""
        with self._lock:
            self._content = deepcopy(content)
            self._changed = True

    def update(self, change: Callable[[JsonObject], None]) -> None:
        """Let ``change`` alter the document in place, alone. Where it raises, the document stays as it was."""
        with self._lock:
            content = deepcopy(self._content)
            change(content)
            self._content = content
            self._changed = True
