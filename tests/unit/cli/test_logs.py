"""Checks: a server's log stops nobody: not a reader that reads no more, not a client that causes many or long lines."""

from __future__ import annotations

import io
import json
import logging
import os
import threading

import pytest

from cometmq.cli.logs import VALUE_CHARS_MAX, JsonLines, LineWriter, RateLimit, TextLines


def record(event: str, *, created: float = 1.0, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "cometmq.x", "levelname": "INFO", "msg": event, "created": created})
    vars(made).update(extra)
    return made


def test_an_event_is_logged_so_often_a_second() -> None:
    limit = RateLimit(per_second=2)
    assert [limit.filter(record("topic made", created=1.0)) for _ in range(4)] == [True, True, False, False]
    assert limit.filter(record("group made", created=1.0)), "each event has its own"
    later = record("topic made", created=2.0)
    assert limit.filter(later)
    assert vars(later)["left_out"] == 2
    again = record("topic made", created=2.5)
    assert limit.filter(again)
    assert "left_out" not in vars(again)


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_a_line_is_one_line_and_short(formatter: logging.Formatter) -> None:
    line = formatter.format(record("made\na second line", name_of="x" * 1_000_000, other="a\nb"))
    assert "\n" not in line
    assert len(line) < 2 * VALUE_CHARS_MAX
    assert "1000000 characters" in line


def test_nobody_waits_for_a_reader_that_reads_no_more() -> None:
    read, write = os.pipe()
    stream = os.fdopen(write, "w")
    handler = LineWriter(stream, waiting_max=100)
    handler.setFormatter(JsonLines())
    done = threading.Event()

    def log() -> None:
        for number in range(5_000):
            handler.emit(record("event", number=number, text="x" * 200))
        done.set()

    threading.Thread(target=log, daemon=True).start()
    assert done.wait(60), "logging waits for the pipe"
    # The reader comes back: dropped lines are reported.
    text = io.BytesIO()

    def take() -> None:
        while piece := os.read(read, 65_536):
            text.write(piece)

    reader = threading.Thread(target=take, daemon=True)
    reader.start()
    handler.close()
    stream.close()
    reader.join(60)
    os.close(read)
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    dropped = sum(line.get("lines", 0) for line in lines if line["event"] == "log lines dropped")
    assert dropped > 0
    assert dropped + sum(line["event"] == "event" for line in lines) == 5_000


def test_a_stream_that_is_closed_ends_nothing() -> None:
    stream = io.StringIO()
    handler = LineWriter(stream)
    handler.setFormatter(TextLines())
    stream.close()
    handler.emit(record("event"))
    handler.close()
