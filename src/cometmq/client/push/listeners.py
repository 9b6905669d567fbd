"""Forms of listeners, their answers, and the meaning of these.

A listener is a function of one message, or of a list of them, plain or ``async def``. It says that it took them by
returning None or ``Outcome.SUCCESS``; any exception means that it did not. The caller always gets a :class:`Handled`:
nothing that a listener raises or returns can end a worker.

Source: consumption specification 1.10.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import pickle
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from cometmq._plural import counted
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

    Answer: TypeAlias = "Outcome | Sequence[Outcome | None] | None"
    Listener: TypeAlias = Callable[[ReceivedMessage], Answer | Awaitable[Answer]]
    BatchListener: TypeAlias = Callable[[list[ReceivedMessage]], Answer | Awaitable[Answer]]
    AnyListener: TypeAlias = Listener | BatchListener
    Call: TypeAlias = Callable[[list[ReceivedMessage]], "Handled"]
    AsyncCall: TypeAlias = Callable[[list[ReceivedMessage]], Awaitable["Handled"]]

__all__ = [
    "SUCCEEDED",
    "Action",
    "Handled",
    "Outcome",
    "async_caller",
    "caller",
    "call_elsewhere",
    "is_async",
    "judge",
]


class Action(enum.Enum):
    """The action on messages that a listener has seen."""

    SUCCESS = "success"
    RETRY = "retry"
    SUSPEND = "suspend"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A listener's answer.

    ``Outcome.SUCCESS``, as None, says that the messages are done. ``Outcome.RETRY``, as an exception, has them come
    again: later by way of the broker where the listener is concurrent, and at once, before any other of the queue,
    where it is orderly. ``Outcome.DEAD_LETTER`` gives them up. The rest is for orderly listeners: ``Outcome.SUSPEND``
    stops the queue for a moment, and with ``auto_commit=False`` ``Outcome.COMMIT`` finishes all messages since the last
    commit, ``Outcome.ROLLBACK`` has them delivered again.

    Attributes:
        action: the action on the messages.
        delay_level: RETRY: which delay of the broker's; -1 for none but the dead letters, 0 for one that grows.
        suspend_ms: SUSPEND, ROLLBACK, orderly RETRY: how long the queue stops; -1 for the consumer's setting.
    """

    action: Action
    delay_level: int = 0
    suspend_ms: int = -1

    SUCCESS: ClassVar[Outcome]
    RETRY: ClassVar[Outcome]
    DEAD_LETTER: ClassVar[Outcome]
    SUSPEND: ClassVar[Outcome]
    COMMIT: ClassVar[Outcome]
    ROLLBACK: ClassVar[Outcome]

    @classmethod
    def retry(cls, *, delay_level: int) -> Outcome:
        """Have the messages redelivered after the broker's delay of this level, 1 being its first.

        Raises:
            InvalidArgument: the level is below 1.
        """
        if delay_level < 1:
            raise InvalidArgument(f"delay_level is {delay_level}; levels begin with 1")
        return cls(Action.RETRY, delay_level=delay_level)

    @classmethod
    def suspend(cls, *, suspend_ms: int) -> Outcome:
        """Stop an orderly queue for so long, 10 ms to 30 s; then the messages are delivered again.

        Raises:
            InvalidArgument: the time is negative.
        """
        if suspend_ms < 0:
            raise InvalidArgument(f"suspend_ms is {suspend_ms}; give 0 or more")
        return cls(Action.SUSPEND, suspend_ms=suspend_ms)


Outcome.SUCCESS = Outcome(Action.SUCCESS)
Outcome.RETRY = Outcome(Action.RETRY)
Outcome.DEAD_LETTER = Outcome(Action.RETRY, delay_level=-1)
Outcome.SUSPEND = Outcome(Action.SUSPEND)
Outcome.COMMIT = Outcome(Action.COMMIT)
Outcome.ROLLBACK = Outcome(Action.ROLLBACK)


@dataclass(frozen=True, slots=True)
class Handled:
    """The result of one call of a listener.

    Attributes:
        outcome: of all its messages, where ``each`` is None.
        each: one per message, or None.
        problem: its exception, or the error in its answer; None without one.
    """

    outcome: Outcome
    each: tuple[Outcome, ...] | None = None
    problem: BaseException | str | None = None

    @property
    def is_success(self) -> bool:
        """Whether all messages are done, as far as the listener is concerned."""
        if self.each is None:
            return self.outcome.action in _DONE
        return all(outcome.action in _DONE for outcome in self.each)


_DONE: Final = (Action.SUCCESS, Action.COMMIT)
SUCCEEDED: Final = Handled(Outcome.SUCCESS)
_SUCCESS: Final = Outcome.SUCCESS


def judge(answer: object, count: int) -> Handled:
    """Return the meaning of an answer for ``count`` messages. An invalid answer counts as a failure and says so."""
    if answer is None:
        return SUCCEEDED
    if isinstance(answer, Outcome):
        return Handled(answer)
    if isinstance(answer, (list, tuple)) and all(one is None or isinstance(one, Outcome) for one in answer):
        if len(answer) == count:
            each = tuple(_SUCCESS if one is None else one for one in answer)
            return Handled(Outcome.SUCCESS, each=each)
        problem = (
            f"the listener returned {counted(len(answer), 'outcome')} for {counted(count, 'message')}: return one, or "
            "one per message"
        )
        return Handled(Outcome.RETRY, problem=problem)
    if inspect.iscoroutine(answer):
        answer.close()
        problem = "the listener is not async but returned a coroutine: declare it with async def"
    else:
        problem = f"the listener returned a {type(answer).__name__}; return None, an Outcome or a list of them"
    return Handled(Outcome.RETRY, problem=problem)


def is_async(listener: object) -> bool:
    """Whether the listener is declared with ``async def``, as a function or as a callable object."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004 - not whether, but what it is


def caller(listener: AnyListener, *, batch: bool) -> Call:
    """Return a function that calls a plain listener and raises nothing.

    Args:
        listener: the user's.
        batch: it takes a list; otherwise one message, and the function is to be called with lists of one.
    """
    call: Any = listener

    def call_with_one(messages: list[ReceivedMessage]) -> Handled:
        try:
            answer = call(messages[0])
        except BaseException as error:  # noqa: BLE001 - after any exception the message was not taken
            return Handled(Outcome.RETRY, problem=error)
        return SUCCEEDED if answer is None or answer is _SUCCESS else judge(answer, 1)

    def call_with_all(messages: list[ReceivedMessage]) -> Handled:
        try:
            # A list of its own: a listener that changes it must not change the messages counted afterwards.
            answer = call(messages.copy())
        except BaseException as error:  # noqa: BLE001 - as above
            return Handled(Outcome.RETRY, problem=error)
        return SUCCEEDED if answer is None or answer is _SUCCESS else judge(answer, len(messages))

    return call_with_all if batch else call_with_one


def async_caller(listener: AnyListener, *, batch: bool) -> AsyncCall:
    """Return a coroutine function that awaits an ``async def`` listener.

    It raises nothing but what ends the program or the task: cancellation, Ctrl-C, its own closing. A listener
    that calls ``sys.exit()`` has failed, as one in a thread has, and so has one that raises another ``BaseException``.
    """
    call: Any = listener

    async def call_async(messages: list[ReceivedMessage]) -> Handled:
        try:
            answer = await call(messages.copy() if batch else messages[0])
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - after any exception the message was not taken
            return Handled(Outcome.RETRY, problem=error)
        return judge(answer, len(messages))

    return call_async


def call_elsewhere(listener: AnyListener, batch: bool, parts: list[list[ReceivedMessage]]) -> list[Handled]:
    """Call a listener in another process, once for each part.

    Args:
        listener: the user's; it and the messages came here by pickle.
        batch: it takes lists.
        parts: the messages of each call.
    """
    call = caller(listener, batch=batch)
    return [_fit_for_pickle(call(part)) for part in parts]


def _fit_for_pickle(handled: Handled) -> Handled:
    error = handled.problem
    if not isinstance(error, BaseException):
        return handled
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an exception class may do anything there
        text = "".join(traceback.format_exception(error))
        return Handled(handled.outcome, problem=text)
    return handled
