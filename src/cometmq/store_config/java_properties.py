"""Reads ``.properties`` files as ``java.util.Properties.load`` does.

The bytes are ISO 8859-1, as upstream loads them: a UTF-8 path that is not ASCII names another folder to a Java broker
than one would think, and the same one here. Escapes are ``\\t \\n \\r \\f \\uXXXX``; before any other character a
backslash only goes away; at the end of a line it continues the line. Of two equal keys the last wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from cometmq.errors import InvalidArgument

__all__ = ["CONFIG_BYTES_MAX", "check_config_body", "parse_properties", "with_values"]

CONFIG_BYTES_MAX = 65_536
"""Length of the settings that one request changes."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_LINE_AND_END = re.compile(r"(\r\n|\r|\n)")
_BLANKS = " \t\f"
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_PLAIN = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def check_config_body(body: bytes) -> None:
    """Refuse settings in a request that are longer than anybody needs.

    Raises:
        InvalidArgument: they are.
    """
    if len(body) > CONFIG_BYTES_MAX:
        raise InvalidArgument(f"{len(body)} bytes of settings; a request has at most {CONFIG_BYTES_MAX}")


def parse_properties(data: bytes, *, repeated: set[str] | None = None) -> dict[str, str]:
    """Return keys and values in the order of the file.

    Args:
        data: the file's bytes.
        repeated: gets the keys that are in the file more than once.

    Raises:
        InvalidArgument: an escape ``\\u`` without four hexadecimal digits; the text names the line.
    """
    found: dict[str, str] = {}
    for number, _, line in _logical_lines(_LINE_END.split(data.decode("iso-8859-1"))):
        matched = _KEY.match(line)
        key, end = ("", 0) if matched is None else (matched.group(1), matched.end())
        name = _unescape(key, number)
        if repeated is not None and name in found:
            repeated.add(name)
        found[name] = _unescape(line[end:], number)
    return found


def with_values(data: bytes, values: Mapping[str, str], *, setting_of: Callable[[str], str | None]) -> bytes:
    """Return a file's bytes with other values; other keys, comments, blank lines and line ends stay as they are.

    Args:
        data: the file's bytes.
        values: texts by setting. A setting that the file does not have is added at its end.
        setting_of: returns the setting that a key of the file means, or None.

    Raises:
        InvalidArgument: as :func:`parse_properties`.
    """
    parts = _LINE_AND_END.split(data.decode("iso-8859-1"))
    lines, ends = parts[0::2], [*parts[1::2], ""]
    missing = dict(values)
    for first, last, line in list(_logical_lines(lines)):
        matched = _KEY.match(line)
        raw_key = "" if matched is None else matched.group(1)
        setting = setting_of(_unescape(raw_key, first))
        if setting is not None and setting in values:
            missing.pop(setting, None)
            lines[first - 1] = f"{raw_key}={_escaped(values[setting])}"
            ends[first - 1] = ends[last - 1]
            for number in range(first, last):
                lines[number] = ends[number] = ""
    text = "".join(line + end for line, end in zip(lines, ends, strict=True))
    line_end = ends[0] or "\n"
    if missing and text and not text.endswith(("\r", "\n")):
        text += line_end
    text += "".join(f"{setting}={_escaped(value)}{line_end}" for setting, value in missing.items())
    return text.encode("iso-8859-1")


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\")
    for letter, char in _PLAIN.items():
        text = text.replace(char, f"\\{letter}")
    return "".join(char if ord(char) < 0x100 else f"\\u{ord(char):04x}" for char in text)


def _logical_lines(natural: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield each line that is neither blank nor a comment, continued ones joined, behind its first and last number."""
    lines = enumerate(natural, start=1)
    for number, line in lines:
        joined = line.lstrip(_BLANKS)
        # A backslash alone continues nothing: the next line may be a comment again. At the very end it is a line.
        if joined[:1] in ("", "#", "!") or (joined == "\\" and number < len(natural)):
            continue
        parts, last = [joined], number
        while _is_continued(parts[-1]):
            last, following = next(lines, (last, ""))
            parts[-1] = parts[-1][:-1]
            parts.append(following.lstrip(_BLANKS))
        yield number, last, "".join(parts)


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, line_number: int) -> str:
    def replace(escape: re.Match[str]) -> str:
        body = escape.group(1)
        if len(body) > 1:
            return chr(int(body[1:], 16))
        if body == "u":
            raise InvalidArgument(f"line {line_number}: \\u needs four hexadecimal digits")
        return _PLAIN.get(body, body)

    return _ESCAPE.sub(replace, text) if "\\" in text else text
