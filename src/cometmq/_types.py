"""Types of arguments that several calls share. For annotations only: nothing here is imported when a program runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

__all__ = [
    "ArrowArrayLike",
    "ArrowSchemaLike",
    "ArrowStreamLike",
    "Bodies",
    "Body",
    "CommandParts",
    "Host",
    "Keys",
    "Numbers",
    "Properties",
    "Values",
]


class ArrowArrayLike(Protocol):
    """Anything with the Arrow C data interface: an array of pyarrow, nanoarrow, …"""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return the capsules of schema and array."""
        ...


class ArrowSchemaLike(Protocol):
    """Anything with an Arrow C schema: a schema of pyarrow, nanoarrow, …"""

    def __arrow_c_schema__(self) -> object:
        """Return the capsule of the schema."""
        ...


class ArrowStreamLike(Protocol):
    """Anything with the Arrow C stream interface: a chunked array, a polars or pandas series, …"""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the capsule of the stream."""
        ...


Body: TypeAlias = Buffer | npt.NDArray[Any]
Bodies: TypeAlias = Iterable[Body] | npt.NDArray[Any] | ArrowArrayLike | ArrowStreamLike
Values: TypeAlias = str | bytes | Iterable[object] | npt.NDArray[Any] | ArrowArrayLike | ArrowStreamLike | None
Numbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
Keys: TypeAlias = str | bytes | Iterable[str] | None
Properties: TypeAlias = Mapping[str, str | bytes]
Host: TypeAlias = tuple[str, int]

CommandParts: TypeAlias = "tuple[int, int, int, int, int, str | None, dict[str, str], bytes, int]"
"""A remoting command as the engine gives it: code, language, version, opaque, flag, remark, fields, body, format."""
