"""A stream's progress as a consumer group's offsets, where a person asked for it.

For monitors, and for a consumer that goes on where the stream was. It is advisory: Spark's checkpoint alone says what a
stream has read, and Spark reports progress one micro-batch late. So a failure here is logged and never ends a stream.
"""

from __future__ import annotations

import logging

from cometmq.errors import Error
from cometmq.spark.catalog import OpenCatalog
from cometmq.spark.offsets import Position

__all__ = ["GroupOffsets"]

_log = logging.getLogger("cometmq.spark")


class GroupOffsets:
    """Commits a group's offsets where the stream reads."""

    def __init__(self, catalog: OpenCatalog, group: str) -> None:
        """``catalog`` stays the caller's."""
        self._catalog = catalog
        self._group = group
        self._committed: Position = {}

    def commit(self, position: Position) -> None:
        """Set the group's next offset of each queue that has changed."""
        changed = {key: offset for key, offset in position.items() if self._committed.get(key) != offset}
        if not changed:
            return
        try:
            self._catalog.commit_progress(self._group, changed)
        except Error as error:
            _log.warning("the offsets of group %s were not committed: %s", self._group, error)
            return
        self._committed |= changed
