"""Exceptions of the configuration layer. They belong to the one family rooted at :class:`cometmq.errors.Error`."""

from __future__ import annotations

from pathlib import Path

from cometmq.errors import Error, InvalidArgument

__all__ = ["ConfigError", "ConfigSyntaxError", "ConfigValueError", "SettingError", "UnknownSetting", "suggestion"]


class ConfigError(Error, ValueError):
    """A file under ``config/`` cannot be used, and neither can its ``.bak``.

    Mend the place that the text names, or put a good copy of the file there. Nothing was changed on disk.

    Attributes:
        reason: the error, without the place.
        path: the file, or None while only its text is known.
    """

    def __init__(self, reason: str, *, path: Path | None = None) -> None:
        """``reason`` is what is wrong; ``path`` is the file where it is known."""
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def in_file(self, path: Path) -> ConfigError:
        """Name the file in the error and return it, for ``raise error.in_file(path)``."""
        self.path = path
        self.message = f"{path}: {self._place_and_reason()}"
        self.args = (self.message,)
        return self

    def _place_and_reason(self) -> str:
        return self.reason


class ConfigSyntaxError(ConfigError):
    """The text is not what fastjson would read.

    Attributes:
        line: line of the offending character, from 1.
        column: its column in characters, from 1.
    """

    def __init__(self, reason: str, *, line: int, column: int, path: Path | None = None) -> None:
        """``line`` and ``column`` count from 1."""
        super().__init__(reason, path=path)
        self.line = line
        self.column = column
        self.message = self._place_and_reason()
        self.args = (self.message,)

    def _place_and_reason(self) -> str:
        return f"line {self.line}, column {self.column}: {self.reason}"


class ConfigValueError(ConfigError):
    """A member of the file has the wrong type or lies outside its range.

    Attributes:
        member: dotted path of the member, such as ``topicConfigTable.orders.perm``.
    """

    def __init__(self, reason: str, *, member: str, path: Path | None = None) -> None:
        """``member`` is the dotted path of the offending member."""
        super().__init__(reason, path=path)
        self.member = member
        self.message = self._place_and_reason()
        self.args = (self.message,)

    def _place_and_reason(self) -> str:
        return f"{self.member}: {self.reason}" if self.member else self.reason


class SettingError(InvalidArgument):
    """A setting has a value that cannot be used. The text names the setting, where it was given, and its range.

    Attributes:
        key: the name as it was given; empty where the whole source cannot be read.
        source: where it was given: a file, ``environment`` or ``keyword arguments``.
    """

    def __init__(self, reason: str, *, key: str, source: str) -> None:
        """``key`` is the name as given, ``source`` the place it was given in."""
        super().__init__(": ".join(part for part in (source, key, reason) if part))
        self.reason = reason
        self.key = key
        self.source = source


def suggestion(names: tuple[str, ...]) -> str:
    """Return the end of a sentence that suggests known names, or nothing without any."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


class UnknownSetting(SettingError):
    """No setting has this name. The text suggests the nearest one, or says whose it is.

    Attributes:
        suggestions: known names that look alike, nearest first.
    """

    def __init__(self, *, key: str, source: str, suggestions: tuple[str, ...], why: str | None = None) -> None:
        """``suggestions`` are known names that look alike; ``why`` goes before them."""
        hint = suggestion(suggestions)
        hint = hint if why is None else f": {why}. Leave it out"
        super().__init__(f"there is no such setting{hint}", key=key, source=source)
        self.suggestions = suggestions
