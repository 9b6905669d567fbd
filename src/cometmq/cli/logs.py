"""A server's log: one line per event on stderr, for people or as JSON.

Lines are written by a thread of their own: a reader of stderr that stops reading never stops the server. Up to 10,000
lines wait for it; further ones are dropped, and counted in the next line that is written. An event is logged 50 times a
second at most, since clients cause many of them.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, Final, TextIO

from cometmq.cli.failures import fail
from cometmq.errors import Error

__all__ = [
    "LINES_PER_SECOND_MAX",
    "LINES_WAITING_MAX",
    "VALUE_CHARS_MAX",
    "JsonLines",
    "LineWriter",
    "RateLimit",
    "TextLines",
    "Warnings",
    "logs_on_stderr",
    "warnings_on_stderr",
]

LINES_PER_SECOND_MAX: Final = 50
"""Lines of one event in a second."""
LINES_WAITING_MAX: Final = 10_000
"""Lines that wait for the reader of stderr."""
VALUE_CHARS_MAX: Final = 2_000
"""Length of one value in a line."""

_EVENTS_MAX = 10_000
_FLUSH_S = 2.0

_OWN_NAMES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """The fields given beside the text."""
    return {name: _short(value) for name, value in vars(record).items() if name not in _OWN_NAMES}


def _short(value: object) -> object:
    """Return a value as it is, or the beginning of its text: a client may have chosen it."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}... ({len(text)} characters)"


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, tz=timezone.utc)


class TextLines(logging.Formatter):
    """``2026-11-22 13:00:00.123 INFO broker registered cluster=c broker=a``, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and below it the traceback if there is one."""
        moment = _time(record).astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]
        words = [moment, record.levelname, _event(record)]
        words += [f"{name}={_word(value)}" for name, value in _extras(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _event(record: logging.LogRecord) -> str:
    text = str(_short(record.getMessage()))
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def _word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(' "=') & set(text) else json.dumps(text)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and the fields given beside the text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _short(record.getMessage()),
            **_extras(record),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class RateLimit(logging.Filter):
    """Lets each event through 50 times a second, and says with the next one how many were left out.

    An event is a text of the code's own, before anything is put into it.
    """

    def __init__(self, per_second: int = LINES_PER_SECOND_MAX) -> None:
        """Nothing was logged."""
        super().__init__()
        self._per_second = per_second
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], list[int]] = {}  # second, lines of it, left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False where the event came too often."""
        key = (record.name, str(record.msg)[:200])
        second = int(record.created)
        with self._lock:
            if len(self._seen) >= _EVENTS_MAX:
                self._seen.clear()
            seen = self._seen.setdefault(key, [second, 0, 0])
            if seen[0] != second:
                seen[0], seen[1] = second, 0
            if seen[1] >= self._per_second:
                seen[2] += 1
                return False
            seen[1] += 1
            left_out, seen[2] = seen[2], 0
        if left_out:
            record.left_out = left_out
        return True


def _dropped_lines(count: int) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "cometmq.log", "msg": "log lines dropped"})
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    record.lines = count
    return record


class LineWriter(logging.Handler):
    """Writes lines to a stream from a thread of its own. Logging threads do not wait for the stream."""

    def __init__(self, stream: TextIO, *, waiting_max: int = LINES_WAITING_MAX) -> None:
        """Begin to write."""
        super().__init__()
        self._stream = stream
        self._waiting_max = waiting_max
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="cometmq-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Line a record up, or count it where too many wait."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)
            return
        with self._changed:
            if len(self._waiting) >= self._waiting_max:
                self._dropped += 1
                return
            self._waiting.append(line)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                lines = list(self._waiting)
                self._waiting.clear()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(self.format(_dropped_lines(dropped)))
            self._write("".join(f"{line}\n" for line in lines))

    def _write(self, text: str) -> None:
        # Nobody reads any more, or the stream is closed: the server goes on.
        with suppress(OSError, ValueError):
            try:
                descriptor = self._stream.fileno()
            except io.UnsupportedOperation:
                self._stream.write(text)
                self._stream.flush()
                return
            # Past the stream's own buffer, whose lock would keep the process from ending while nobody reads.
            data = memoryview(text.encode("utf-8", "backslashreplace"))
            while data:
                data = data[os.write(descriptor, data) :]

    def close(self) -> None:
        """Write what waits, as far as the stream takes it within two seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(_FLUSH_S)
        super().close()


class Warnings(logging.Handler):
    """Prints each warning as the commands print what they have to say: a line on stderr.

    Attributes:
        refusal: a broker's refusal of reads, which is not printed; the command ends with it.
    """

    refusal: Error | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line."""
        refusal = getattr(record, "refusal", None)
        if isinstance(refusal, Error):
            self.refusal = refusal
        else:
            fail(f"warning: {record.getMessage()}")

    def raise_refusal(self) -> None:
        """Return where no broker refuses reads; raise its refusal otherwise."""
        if self.refusal is not None:
            raise self.refusal


@contextmanager
def warnings_on_stderr() -> Iterator[Warnings]:
    """Print the client's warnings while the block runs; yields the handler, whose level can be raised."""
    logger = logging.getLogger("cometmq")
    handler = Warnings(logging.WARNING)
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
    handler = LineWriter(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handler.addFilter(RateLimit())
    handlers, level, propagated = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        handler.close()
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagated
