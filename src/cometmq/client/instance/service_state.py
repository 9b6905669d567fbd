"""The states of a producer, a consumer and a client instance, under upstream's names.

Source: consumption specification 1.1.
"""

from __future__ import annotations

import enum

from cometmq.errors import ClientStateError

__all__ = ["ServiceState", "not_startable", "require_running"]


class ServiceState(enum.Enum):
    """From made to closed; a start that failed stays failed."""

    CREATE_JUST = "not started"
    START_FAILED = "unusable, as its start failed"
    RUNNING = "running"
    SHUTDOWN_ALREADY = "closed"


_WHAT_TO_DO = {
    ServiceState.CREATE_JUST: "call start() first",
    ServiceState.START_FAILED: "make a new one; the error of its start() says what was wrong",
    ServiceState.RUNNING: "it is started once only",
    ServiceState.SHUTDOWN_ALREADY: "make a new one",
}


def not_startable(what: str, state: ServiceState) -> ClientStateError:
    """Return the error of a start in a state that has none; ``what`` names the client, as "consumer group g"."""
    return ClientStateError(f"{what} cannot start: it is {state.value}; {_WHAT_TO_DO[state]}")


def require_running(what: str, state: ServiceState) -> None:
    """Return where the state is RUNNING.

    Raises:
        ClientStateError: it is another one; the text names it and what to do.
    """
    if state is not ServiceState.RUNNING:
        raise ClientStateError(f"{what} is {state.value}: {_WHAT_TO_DO[state]}")
