"""Checks: each engine status has its exception; the family fits Python's own; errors survive pickling."""

from __future__ import annotations

import errno
import pickle

import pytest

import cometmq
from cometmq import _engine, errors
from cometmq.errors import Error, Status, from_engine

FAILURES = [status for status in Status if status.name.startswith("ERR_")]
FAMILY = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Error)]


def test_statuses_are_the_engine_s() -> None:
    assert {status.name: int(status) for status in Status} == _engine.STATUS_CODES


@pytest.mark.parametrize("status", list(Status))
def test_status_names_are_the_engine_s(status: Status) -> None:
    assert _engine.status_name(status) == f"CMQ_{status.name}"


@pytest.mark.parametrize("status", FAILURES)
def test_each_failure_has_a_class_of_its_own(status: Status) -> None:
    error = from_engine(status, "what happened")
    assert type(error) is not Error
    assert error.status is status
    assert type(error).status is status, "the class does not carry the status it stands for"
    assert str(error) == "what happened"


@pytest.mark.parametrize(
    ("status", "builtin"),
    [
        (Status.ERR_ARGUMENT, ValueError),
        (Status.ERR_TOPIC, ValueError),
        (Status.ERR_NOT_FOUND, LookupError),
        (Status.ERR_OFFSET, IndexError),
        (Status.ERR_IO, OSError),
        (Status.ERR_DISK_FULL, OSError),
        (Status.ERR_PERMISSION, PermissionError),
        (Status.ERR_FENCED, OSError),
        (Status.ERR_CLOSED, ValueError),
        (Status.ERR_MEMORY, MemoryError),
    ],
)
def test_builtin_that_fits(status: Status, builtin: type[Exception]) -> None:
    assert isinstance(from_engine(status, "text"), builtin)


def test_details_are_carried() -> None:
    corrupt = from_engine(Status.ERR_CORRUPT, "bad magic", offset=4711)
    assert isinstance(corrupt, errors.CorruptRecord)
    assert (corrupt.offset, corrupt.reason) == (4711, "bad magic")
    full = from_engine(Status.ERR_DISK_FULL, "no space", sys_errno=errno.ENOSPC)
    assert isinstance(full, errors.DiskFull)
    assert full.errno == errno.ENOSPC
    assert full.retriable
    locked = from_engine(Status.ERR_LOCKED, "held", holder_pid=17)
    assert isinstance(locked, errors.StoreLocked)
    assert locked.holder_pid == 17


def test_absent_details_are_none() -> None:
    for status, attribute in [
        (Status.ERR_CORRUPT, "offset"),
        (Status.ERR_OFFSET, "offset"),
        (Status.ERR_IO, "errno"),
        (Status.ERR_LOCKED, "holder_pid"),
    ]:
        assert getattr(from_engine(status, "text"), attribute) is None


def test_an_unknown_status_is_still_one_of_the_family() -> None:
    assert "-9999" in str(from_engine(-9999, "text"))


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
def test_every_error_pickles_and_names_a_remedy(kind: type[Error]) -> None:
    error = kind("some text")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "some text"
    assert copy.__dict__ == error.__dict__
    assert kind.__doc__ is not None
    assert len(kind.__doc__.split()) > 8, "the docstring must say what happened and what to do"
    assert getattr(cometmq, kind.__name__) is kind


def test_pickling_keeps_details() -> None:
    full = pickle.loads(pickle.dumps(from_engine(Status.ERR_DISK_FULL, "no space", sys_errno=errno.ENOSPC)))
    assert (full.errno, str(full)) == (errno.ENOSPC, "no space")
    locked = pickle.loads(pickle.dumps(from_engine(Status.ERR_LOCKED, "held", holder_pid=17)))
    assert locked.holder_pid == 17
