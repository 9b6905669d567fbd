"""Exit codes, and how a command that fails ends: one clear line, no traceback."""

from __future__ import annotations

import enum
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import typer

from cometmq.errors import Error, InvalidArgument, StoreLocked

__all__ = ["ExitCode", "fail", "reported", "usage"]


class ExitCode(enum.IntEnum):
    """A command's exit codes. Stable: scripts may rely on them."""

    OK = 0
    """Done; for ``verify``: the store is healthy."""
    REPAIRABLE = 1
    """``verify``: something can be repaired. ``repair``: the answer was no."""
    INCOMPLETE = 1
    """``produce``: some messages were not acknowledged; the others were."""
    USAGE = 2
    """An option or argument cannot be used; the shell of every typer command answers this."""
    FAILED = 3
    """The command could not do it; the line on stderr says why."""
    DAMAGED = 4
    """``verify``: the commit log is damaged. ``cat``, ``message``: damaged records were passed over."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE_CLOSED = 141
    """The reader of the output went away."""


def fail(text: str) -> None:
    """Print one line that says why on stderr."""
    typer.echo(f"cometmq: {'; '.join(line.strip() for line in text.splitlines())}", err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    fail(f"warning: {message}")


def _drop_unwritable_output() -> None:
    """Drop buffered output that cannot be written: the interpreter's flush at its end would print a traceback."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def reported() -> Iterator[None]:
    """Turn what a command raises into a line on stderr and an exit code."""
    with warnings.catch_warnings(), _hangup_as_interrupt():
        warnings.showwarning = _show_warning
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            _drop_unwritable_output()
            raise typer.Exit(ExitCode.PIPE_CLOSED) from None
        except StoreLocked as error:
            fail(str(error))
            if error.holder_pid == os.getpid():
                fail("this process already has the store open")
            raise typer.Exit(ExitCode.FAILED) from None
        except UnicodeEncodeError as error:
            raise _not_text(error) from None
        except Error as error:
            if isinstance(error.__cause__, UnicodeEncodeError):
                raise _not_text(error.__cause__) from None
            fail(str(error))
            raise typer.Exit(ExitCode.FAILED) from None
        except OSError as error:
            _drop_unwritable_output()
            fail(_system_text(error))
            raise typer.Exit(ExitCode.FAILED) from None


@contextmanager
def _hangup_as_interrupt() -> Iterator[None]:
    """Have SIGHUP end the command as Ctrl-C does, so that it closes what it has open; under ``nohup`` it is ignored."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _not_text(error: UnicodeEncodeError) -> typer.Exit:
    """Name the argument whose bytes are not text; return the end of the command."""
    fail(f"{error.object!r} is not text in this locale's encoding, {sys.getfilesystemencoding()}: use a UTF-8 locale")
    return typer.Exit(ExitCode.USAGE)


@contextmanager
def usage() -> Iterator[None]:
    """Take an argument that cannot be used for a mistake of the command line, which it came from.

    Raises:
        typer.BadParameter: something in it raised InvalidArgument.
    """
    try:
        yield
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None


def _system_text(error: OSError) -> str:
    """The system's error text for a file outside the store, or for a stream, which has no name."""
    if error.strerror is None:
        return str(error)
    if error.filename is None:
        return f"input or output failed: {error.strerror}"
    return f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"
