"""Checks: calls in the wrong state name the state and what to do."""

from __future__ import annotations

import pytest

from cometmq.client.instance.service_state import ServiceState, not_startable, require_running
from cometmq.errors import ClientStateError


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (ServiceState.CREATE_JUST, r"group g is not started: call start\(\) first"),
        (ServiceState.START_FAILED, "group g is unusable, as its start failed: make a new one"),
        (ServiceState.SHUTDOWN_ALREADY, "group g is closed: make a new one"),
    ],
)
def test_not_running(state: ServiceState, text: str) -> None:
    with pytest.raises(ClientStateError, match=text):
        require_running("group g", state)


def test_running() -> None:
    require_running("group g", ServiceState.RUNNING)
    assert str(not_startable("group g", ServiceState.RUNNING)) == (
        "group g cannot start: it is running; it is started once only"
    )
