"""Leaving work for the store's writer, from a process that only reads.

The other side is :mod:`cometmq.store.handoff`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from cometmq._engine import (
    AppendManyResult,
    Message,
    Reader,
    StoreHandle,
    append_many_result_of,
    lock_holder,
    lock_writer,
)
from cometmq._plural import counted
from cometmq.errors import Error, HandoffRejected, HandoffWaiting, StorageError, StoreClosed, StoreLocked
from cometmq.store.handoff import handoff_mark
from cometmq.store.handoff_door import NOT_NOW, REJECTED, STORED, DoorBroken, DoorClient
from cometmq.store.handoff_files import (
    HANDOFF_PROPERTY,
    CallWork,
    CommitWork,
    HandoffFolder,
    MessagesWork,
    StagedWork,
    Work,
    encode_work,
)

__all__ = ["HANDOFF_TIMEOUT_S", "HandedOff", "HandoffClient"]

HANDOFF_TIMEOUT_S = 30.0
"""Longest wait of an append for the writer."""
_LOOK_EVERY_S_MIN = 0.000_5
_LOOK_EVERY_S_MAX = 0.05
_LOOKS_FOR_PAGE = 10
_LOOK_FOR_PAGE_S = 0.05
_PLACE_BYTES = 8


class HandedOff:
    """Messages that were left for the writer. They are durable; :meth:`wait` returns where they were stored.

    Attributes:
        work_id: id of the work; the messages carry it as the property ``CMQ_HANDOFF``.
        count: number of messages.
    """

    def __init__(self, client: HandoffClient, work: MessagesWork, name: str, view: StoreHandle, log_end: int) -> None:
        """``log_end``: where ``view`` ended before the work was left."""
        self.work_id = work.work_id
        self.count = len(work.bodies)
        self._client = client
        self._topic = work.topic
        self._name = name
        self._view, self._log_end = view, log_end

    @property
    def applied(self) -> bool:
        """True when the writer has appended the messages, or put them aside."""
        return not self._client.folder.is_waiting(self._name)

    def wait(self, timeout_s: float | None = None) -> AppendManyResult:
        """Wait until the writer has appended the messages.

        Args:
            timeout_s: longest wait in seconds; None for no limit.

        Raises:
            HandoffWaiting: the time is over. The messages stay where they are and will be appended.
            HandoffRejected: the writer cannot append them.
            StoreLocked: a Java broker has taken the store over meanwhile.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._client.wait_applied(self._name, deadline)
        messages = self._client.find_marked(self.work_id, self.count, (self._view, self._log_end), deadline)
        return append_many_result_of(self._topic, messages)

    def __repr__(self) -> str:
        """Say what was left, and whether it still waits."""
        state = "taken by the writer" if self.applied else "waiting"
        return f"<HandedOff {self._topic}: {counted(self.count, 'message')}, {state}, id {self.work_id}>"


class HandoffClient:
    """Leaves work and waits for it. Threads: any."""

    def __init__(
        self,
        handle: StoreHandle,
        folder: HandoffFolder,
        apply_directly: Callable[[], None],
        keep_view: Callable[[], None] | None,
    ) -> None:
        """``apply_directly`` opens the store for writing, which applies waiting work, and closes it; ``keep_view``
        refreshes the view and reopens one that has ended, or None: such a view stays ended.
        """
        self.folder = folder
        self.door = DoorClient(folder.root)
        self.appended = False
        """Whether the writer appended anything for this process: then there is something to flush."""
        self._handle = handle
        self._apply_directly = apply_directly
        self._keep_view = keep_view

    def follow(self, handle: StoreHandle) -> None:
        """Go on with another view of the store."""
        self._handle = handle

    def append(self, work: MessagesWork, timeout_s: float) -> AppendManyResult:
        """Have the writer append messages, through its door or by the folder, and wait until it has.

        Raises:
            StoreLocked: a Java broker holds the store.
            HandoffWaiting: the time is over. The messages are durable and will be appended.
            HandoffRejected: the writer cannot append them.
            LimitReached, MessageTooLarge, StorageError: as :meth:`HandoffFolder.leave`. StorageError also where the
                door gave no answer and the folder takes no work: the text says that the messages may be stored.
        """
        deadline = time.monotonic() + timeout_s
        self._refresh()  # a view that has ended refuses before anything is sent
        view = self._handle
        with view.hold():  # a close waits for the answer
            log_end = view.info()["log_end"]
            try:
                answer = self.door.ask(encode_work(work))
                if answer is not None and answer[0] == STORED:
                    self.appended = True
                    return append_many_result_of(work.topic, self._read_stored(work, answer[1]))
            except DoorBroken as error:
                self.appended = True
                answer = NOT_NOW, str(error).encode()
        if answer is None:
            self.check_writer()  # a Java broker has no door, and takes no work
            return HandedOff(self, work, self._leave(work), view, log_end).wait(max(deadline - time.monotonic(), 0.0))
        if answer[0] == REJECTED:
            raise _rejected(answer[1].decode("utf-8", "replace"))
        work = replace(work, sought_from=log_end)  # the writer, or one before it, may have appended some
        try:
            self.check_writer()
            return HandedOff(self, work, self._leave(work), view, log_end).wait(max(deadline - time.monotonic(), 0.0))
        except (HandoffWaiting, HandoffRejected):
            raise
        except Error as error:
            raise StorageError(
                f"{counted(len(work.bodies), 'message')} may be in {self._handle.path} or not, as the writer gave no "
                f"place of theirs: {error}. Those that are have the property {HANDOFF_PROPERTY}, "
                f"{work.work_id}:<index>, at or behind physical offset {log_end}; look for it before you append again"
            ) from error

    def _read_stored(self, work: MessagesWork, places: bytes) -> list[Message]:
        """Return the messages that the door answered to have stored.

        Raises:
            DoorBroken: they cannot be read there. In a network namespace of its own, another program may have the
                door's name.
        """
        count = len(work.bodies)
        if len(places) != count * _PLACE_BYTES:
            raise DoorBroken(f"{len(places)} bytes of places for {counted(count, 'message')}")
        try:
            self._handle.refresh()
            messages = [self._handle.read_physical(place) for place in array("q", places)]
        except Error as error:
            raise DoorBroken(str(error)) from error
        if [handoff_mark(message) for message in messages] != [(work.work_id, index) for index in range(count)]:
            raise DoorBroken("other messages are at the places")
        return messages

    def leave_messages(self, work: MessagesWork) -> HandedOff:
        """Leave messages, durably.

        Raises:
            StoreLocked: a Java broker holds the store.
            LimitReached, MessageTooLarge, StorageError: as :meth:`HandoffFolder.leave`.
        """
        self.check_writer()
        view = self._handle
        log_end = view.info()["log_end"]
        return HandedOff(self, work, self._leave(work), view, log_end)

    def leave_commit(self, work: CommitWork) -> None:
        """Leave a group's progress, durably; applied at once where nobody writes. Raises as :meth:`leave_messages`."""
        self.check_writer()
        self._leave(work)

    def call(self, work: CallWork, timeout_s: float) -> None:
        """Have the writer make a call, and wait until it has. Raises as :meth:`leave_messages`, and:

        Raises:
            HandoffWaiting: the time is over. The call stays where it is and will be made.
            HandoffRejected: the writer cannot make it.
        """
        self.check_writer()
        self.wait_applied(self._leave(work), time.monotonic() + timeout_s)

    def leave_staged(self, work: StagedWork) -> str:
        """Leave files of messages; applied at once where nobody writes. Returns the work's name.

        Raises as :meth:`leave_messages`.
        """
        self.check_writer()
        return self._leave(work)

    def _leave(self, work: Work) -> str:
        name = self.folder.leave(work)
        self._apply_if_free()
        return name

    def _refresh(self) -> None:
        if self._keep_view is None:
            self._handle.refresh()
        else:
            self._keep_view()

    def check_writer(self) -> None:
        """Refuse where a Java broker has the store: it does not look into our folder."""
        holder = 0
        for _ in range(_LOOKS_FOR_PAGE):
            self._refresh()
            holder, is_ours = lock_writer(self._handle.path)
            if holder == 0 or is_ours or self._handle.info()["writer_is_ours"]:
                return
            # An older CometMQ that is just opening has the lock, and not yet published itself; it is looked for every
            # 100 ms.
            time.sleep(_LOOK_FOR_PAGE_S)
        raise StoreLocked(
            f"{self._handle.path} is held by another program (process {holder}), a RocketMQ broker by its looks, "
            "which does not take handed-off work: send and commit over the wire, as its client",
            holder_pid=holder if holder > 0 else None,
        )

    def _apply_if_free(self) -> bool:
        """Become the writer for a moment where the store has none; False where it has one."""
        if lock_holder(self._handle.path) != 0:
            return False
        try:
            self._apply_directly()
        except StoreLocked:
            return False
        return True

    def wait_applied(self, name: str, deadline: float | None) -> None:
        """Wait until a piece of work is gone from the folder."""
        pause_s = _LOOK_EVERY_S_MIN
        while self.folder.is_waiting(name):
            if self._handle.closed:
                raise StoreClosed(f"{self._handle.path} was closed while handed-off work waits; the work stays")
            if pause_s >= _LOOK_EVERY_S_MAX:
                # For long nobody took it: perhaps the writer has gone, or another program has come.
                self.check_writer()
                if self._apply_if_free():
                    continue
                self.folder.wake()
            if deadline is not None and time.monotonic() >= deadline:
                raise HandoffWaiting(
                    f"the writer of {self._handle.path} has not taken the work yet; it is on disk, and the next writer "
                    "will apply it at the latest"
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LOOK_EVERY_S_MAX)
        reason = self.folder.rejection(name)
        if reason is not None:
            raise _rejected(reason)

    def find_marked(
        self, work_id: str, count: int, begun: tuple[StoreHandle, int], deadline: float | None
    ) -> list[Message]:
        """Return the messages of a piece of work in its order; ``begun``: a view, and its end before the work."""
        while True:
            try:
                *earlier, last = self._starts(*begun)
                for start in earlier:
                    with suppress(HandoffWaiting):
                        return self._find_marked(work_id, count, start, time.monotonic())
                return self._find_marked(work_id, count, last, deadline)
            except StoreClosed:  # noqa: PERF203 - once, but for an ended view
                if self._handle.closed or self._keep_view is None:
                    raise
                if deadline is not None and time.monotonic() >= deadline:
                    raise HandoffWaiting("the work was applied, but the view of it has ended") from None
                self._keep_view()

    def _starts(self, view: StoreHandle, log_end: int) -> list[int]:
        """Return where to begin the search for messages that were appended when a view ended at ``log_end``.

        A writer may have cut the tail that an ended view had read, and appended the messages where it was cut: near
        the view's end most often. Segments begin with a record.
        """
        if view is self._handle:
            return [log_end]
        info = self._handle.info()
        near = min(log_end, info["log_end"])
        near -= near % info["segment_bytes"]
        return [max(near, info["log_min"]), info["log_min"]]

    def _find_marked(self, work_id: str, count: int, log_end: int, deadline: float | None) -> list[Message]:
        found: dict[int, Message] = {}
        with Reader(self._handle, start_physical=log_end) as reader:
            while len(found) < count:
                messages = reader.fetch(timeout_ms=100)
                for message in messages:
                    mark = handoff_mark(message)
                    if mark is not None and mark[0] == work_id:
                        found.setdefault(mark[1], message)
                if not messages and deadline is not None and time.monotonic() >= deadline:
                    raise HandoffWaiting(
                        f"the work was applied, but {count - len(found):,} of {counted(count, 'message')} cannot be "
                        "seen yet"
                    )
        return [found[index] for index in range(count)]


def _rejected(reason: str) -> HandoffRejected:
    return HandoffRejected(f"the store's writer cannot apply the work: {reason}")
