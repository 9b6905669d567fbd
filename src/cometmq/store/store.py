"""The store as Python sees it: :func:`open` and :class:`Store`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal

from cometmq.errors import InvalidArgument, WrongType
from cometmq.store.administration import Administration
from cometmq.store.appending import Appending
from cometmq.store.consumer import Consumer
from cometmq.store.opening import plan_opening
from cometmq.store.options import FlushMode, Retention, StartFrom, Time, optional_selector, parse_tags
from cometmq.store.scanning import Scanning
from cometmq.store_config.names import validate_group

__all__ = ["Store", "open"]


def open(
    path: str | os.PathLike[str],
    *,
    mode: Literal["a", "r", "auto"] = "a",
    flush: FlushMode | str | None = None,
    config: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    segment_bytes: int | None = None,
    body_bytes_max: int | None = None,
    default_queues: int = 1,
    retention: Retention | None = None,
    create: bool = True,
    background: bool = True,
) -> Store:
    """Open a store directory.

    Args:
        path: the directory, new or written by CometMQ or a RocketMQ broker (4.9, 5.x).
        mode: ``"a"`` to append and read; one process at a time, and no broker beside it. ``"r"`` to read, beside a
            writer too, whose new messages appear; such a store leaves what it has to write to the writer (hand-off).
            ``"auto"`` for processes that share a store, such as the workers of a web server: one of them is the writer,
            the others are as with ``"r"``, and when the writer closes or dies another takes over.
        flush: when an append is acknowledged: ``"sync"`` (default) when it is on disk, ``"async"`` when it is in the
            page cache, which a power loss takes the last half second of. ``config`` may ask for ``"async"`` too.
        config: a broker's ``broker.properties``, or a ``cometmq.toml``: the store's sizes and features. Needed only
            where the directory does not determine them; the error says so.
        settings: further settings by upstream's names (``{"messageIndexEnable": False}``) or ours.
        segment_bytes: size of a commit log file of a new store (default 1 GiB).
        body_bytes_max: largest body (default 4 MiB).
        default_queues: queues of a topic that its first append makes.
        retention: when old messages go. None: never.
        create: make a store if the directory has none. Ignored with mode ``"r"``.
        background: run the threads that flush, prewarm and take handed-off work. Without, call :meth:`Store.maintain`.

    Raises:
        StoreLocked: another process is the writer; ``holder_pid`` says which.
        NotAStore: something else is in the directory.
        SettingNeeded: the directory does not determine one of its sizes; the text names the setting.
        NotFound: there is no store, and ``create`` is False.
        InvalidArgument: an argument or a setting cannot be used.
        StorageError: the system refused something; DiskFull, PermissionDenied where that is why.
    """
    if mode not in ("a", "r", "auto"):
        raise InvalidArgument(f'mode is "a" (append and read), "r" (read) or "auto" (share), not {mode!r}')
    plan = plan_opening(
        path,
        flush=flush,
        config=config,
        settings=settings,
        named={"mapped_file_size_commit_log_bytes": segment_bytes, "max_message_size_bytes": body_bytes_max},
        retention=retention,
        default_queues=default_queues,
        create=create,
        background=background,
    )
    return Store(plan, read_only=mode != "a", shared=mode == "auto")


class Store(Appending, Scanning, Administration):
    """A store directory, open. Made by :func:`cometmq.open`.

    Any thread may call any method at any time. :meth:`close` waits for calls under way; calls after it raise
    StoreClosed. After ``os.fork`` the child may only close it, which lets go of memory without touching a file: open
    the store in the child, with ``mode="auto"`` in both.
    Messages stay valid after closing.
    """

    def consumer(
        self,
        group: str,
        topic: str | Iterable[str],
        *,
        tags: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        start: StartFrom | Literal["earliest", "latest"] | Time = StartFrom.EARLIEST,
        follow: bool = False,
        timeout_s: float | None = None,
        where: str | None = None,
    ) -> Consumer:
        """Open a consumer of a group: it goes on where the group's last :meth:`Consumer.commit` left off.

        Args:
            group: consumer group; letters, digits, ``%``, ``|``, ``-``, ``_``; up to 120.
            topic: topic, or several.
            tags: as :meth:`read`.
            queues: only these queues. Without, all of them.
            start: where a group without progress begins in a queue: "earliest", "latest", or a time.
            follow: as :meth:`read`.
            timeout_s: as :meth:`read`.
            where: as :meth:`read`. Passed messages that do not match count as consumed, as with ``tags``.

        Raises:
            InvalidArgument, LimitReached: ``where`` cannot be used.
            GroupBusy: another consumer of the group has one of the queues in this process. An embedded store does not
                share queues out; two *processes* that consume the same queue for one group are not noticed, and both
                see every message.
            TopicNotFound: there is no such topic.
        """
        validate_group(group)
        if topic is None:
            raise WrongType("topic must be a topic or a list of topics, not None")
        topics = self._checked_topics(topic)
        return Consumer(
            self,
            group,
            topics,
            tags=parse_tags(tags),
            where=optional_selector(where),
            queue_ids=self._checked_queues(topics, queues),
            start=start,
            follow=follow,
            timeout_s=timeout_s,
        )
