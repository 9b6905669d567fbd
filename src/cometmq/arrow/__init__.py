"""Messages as Arrow columns, without an export, from :meth:`cometmq.Store.scan`. The guide is ``docs/arrow.md``.

:class:`Scan` is an Arrow stream for pyarrow, Polars, DuckDB and pandas. The columns are made in C; this package names
them, decodes structured bodies by Arrow's own readers, and hands everything on. pyarrow, Polars, DuckDB and pandas are
imported by the calls that need them.
"""

from __future__ import annotations

from cometmq.arrow.columns import COLUMN_NAMES, DEFAULT_COLUMNS
from cometmq.arrow.cursor import Cursor
from cometmq.arrow.scan import Scan, ScanReport

__all__ = ["COLUMN_NAMES", "DEFAULT_COLUMNS", "Cursor", "Scan", "ScanReport"]
