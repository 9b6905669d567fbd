"""One remoting command, a request or a response, as a value. Its bytes are C's affair: there is no second codec here.

Source: remoting specification 1.2 to 1.7.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cometmq.errors import CorruptRecord, InvalidArgument, LimitReached, MalformedCommand

if TYPE_CHECKING:
    from cometmq._types import CommandParts

__all__ = ["FLAG_ONEWAY", "FLAG_RESPONSE", "FRAME_BYTES_MAX", "VERSION", "Command", "HeaderFormat", "Language"]

VERSION = 479
"""The version that we report: the ordinal of 5.3.3 in upstream's list of versions."""

FRAME_BYTES_MAX = 16 << 20
"""Longest frame with its length word; upstream's ``frameMaxLength``."""

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2


class HeaderFormat(enum.IntEnum):
    """How a header is written. The values are those of the frame's header word."""

    JSON = 0
    ROCKETMQ = 1


class Language(enum.IntEnum):
    """The language of a peer. Upstream reads these names; an unknown one becomes OTHER."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A request or a response. Immutable.

    Attributes:
        code: request code, or response code in a response.
        fields: the header's own members (upstream's ext fields). Do not change it in place.
        body: the frame's body; absent and empty are the same on the wire.
        opaque: pairs a response with its request; int32, each direction of a connection counts for itself.
        flag: bits ``FLAG_RESPONSE`` and ``FLAG_ONEWAY``.
        language: the sender's language.
        version: the sender's version, an ordinal of upstream's list.
        remark: a text for people, mostly about a failure, or None.
        format: how the header was or will be written.
    """

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    language: Language = Language.JAVA
    version: int = VERSION
    remark: str | None = None
    format: HeaderFormat = HeaderFormat.JSON

    @property
    def is_response(self) -> bool:
        """True for an answer, False for a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True for a request that must get no answer at all, not even an error."""
        return bool(self.flag & FLAG_ONEWAY)

    def response(
        self,
        code: int,
        *,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        """Return the answer to this request: same opaque, same header format, the response bit alone."""
        return Command(
            code=code,
            fields={} if fields is None else fields,
            body=body,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            format=self.format,
        )

    def with_opaque(self, opaque: int) -> Command:
        """Return the same command under another number."""
        return replace(self, opaque=opaque)

    def as_oneway(self) -> Command:
        """Return the same request with the bit that asks for no answer."""
        return replace(self, flag=self.flag | FLAG_ONEWAY)

    def encode(self) -> bytes:
        """Return the whole frame, length word included.

        Raises:
            InvalidArgument: a number does not fit its place in the header, or the frame would be longer than
                :data:`FRAME_BYTES_MAX`.
        """
        # The engine is imported by the first frame: a module that only names commands stays light.
        from cometmq import _engine

        frame = _engine.encode_command(
            self.code,
            int(self.language),
            self.version,
            self.opaque,
            self.flag,
            self.remark,
            self.fields,
            self.body,
            int(self.format),
        )
        if len(frame) > FRAME_BYTES_MAX:
            raise InvalidArgument(
                f"the frame of code {self.code} has {len(frame)} bytes, more than the {FRAME_BYTES_MAX} that peers take"
            )
        return frame

    @staticmethod
    def decode(frame: bytes) -> Command:
        """Read one whole frame, length word included.

        Raises:
            MalformedCommand: the bytes are not exactly one frame; the connection cannot be read further.
        """
        from cometmq import _engine

        try:
            parts = _engine.decode_command(frame)
        except (CorruptRecord, InvalidArgument, LimitReached) as error:
            raise MalformedCommand(error.message, status=error.status) from error
        return Command.of_parts(parts)

    @staticmethod
    def of_parts(parts: CommandParts) -> Command:
        """Return the command that the engine read."""
        code, language, version, opaque, flag, remark, fields, body, header_format = parts
        return Command(
            code=code,
            fields=fields,
            body=body,
            opaque=opaque,
            flag=flag,
            language=_language(language),
            version=version,
            remark=remark,
            format=HeaderFormat(header_format),
        )


def _language(code: int) -> Language:
    return _LANGUAGES.get(code, Language.OTHER)


_LANGUAGES = {int(language): language for language in Language}
