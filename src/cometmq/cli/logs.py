"""What a server tells while it runs: one line an event on stderr, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from cometmq.cli.failures import fail

__all__ = ["JsonLines", "TextLines", "logs_on_stderr", "warnings_on_stderr"]

_OWN_NAMES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """What was given beside the text."""
    return {name: value for name, value in vars(record).items() if name not in _OWN_NAMES}


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, tz=timezone.utc)


class TextLines(logging.Formatter):
    """``2026-11-22 13:00:00.123 INFO broker registered cluster=c broker=a``, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and below it the traceback if there is one."""
        moment = _time(record).astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]
        words = [moment, record.levelname, record.getMessage()]
        words += [f"{name}={_word(value)}" for name, value in _extras(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(' "=') & set(text) else json.dumps(text)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and what was given beside the text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class _Warnings(logging.Handler):
    """Prints each warning as the commands print what they have to say: a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line."""
        fail(f"warning: {record.getMessage()}")


@contextmanager
def warnings_on_stderr() -> Iterator[logging.Handler]:
    """Print what the client warns of while the block runs; yields what can be told to print less."""
    logger = logging.getLogger("cometmq")
    handler = _Warnings(logging.WARNING)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


@contextmanager
def logs_on_stderr(*, as_json: bool) -> Iterator[None]:
    """Send everything of ``cometmq`` from INFO on to stderr while the block runs."""
    logger = logging.getLogger("cometmq")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handlers, level, propagated = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagated
