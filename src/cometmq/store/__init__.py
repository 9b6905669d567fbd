"""A store directory in this process: a durable queue without a server.

The way of a call::

    cometmq.open -> opening.Plan (settings, features) -> _engine.StoreHandle
    Store.append -> topic_book (topics.json first) -> _engine -> csrc/store
    Store.read   -> _engine.Reader -> Message (over the mapped log)
    Consumer     -> _engine.Reader with starts; commit -> group_book -> progress_journal -> csrc/store/marks
    mode "r"     -> handoff_client -> files -> the writer's handoff -> append, commit

The modules:

==================  =================================================================================================
engine (C)          log, queues, index, their recovery and flush; everything about single messages
``topic_book``      ``config/topics.json``: a topic is there before its first message
``group_book``      ``config/consumerOffset.json``, ``subscriptionGroup.json``; which consumers are open here
``progress_*``      ``cometmq/progress``: commits since the JSON was written; progress within what the queues hold
``handoff_files``   ``cometmq/handoff/``: work that other processes leave for the writer
==================  =================================================================================================

Threads: a Store may be shared freely; a Reader and a Consumer are for one thread at a time. ``close`` waits for calls
under way. Locks are taken in this order and never held while an append waits for the disk: applying hand-offs, commits,
making a topic, the files' own.

Forks: a child may only close. A forgotten ``close`` gives a ResourceWarning; nothing that was acknowledged is lost.
"""

from __future__ import annotations

from cometmq._engine import AppendManyResult, AppendResult, Message, Reader
from cometmq.store.consumer import Consumer
from cometmq.store.handoff_client import HandedOff
from cometmq.store.options import (
    FlushMode,
    GroupProgress,
    QueueInfo,
    Retention,
    StartFrom,
    StoreInfo,
    StoreOpening,
    TopicInfo,
)
from cometmq.store.store import Store, open

__all__ = [
    "AppendManyResult",
    "AppendResult",
    "Consumer",
    "FlushMode",
    "GroupProgress",
    "HandedOff",
    "Message",
    "QueueInfo",
    "Reader",
    "Retention",
    "StartFrom",
    "Store",
    "StoreInfo",
    "StoreOpening",
    "TopicInfo",
    "open",
]
