"""Administration of a cluster over the wire: CometMQ's, and Apache RocketMQ's of 4.9 and 5.x.

::

    import cometmq.admin

    with cometmq.admin.connect(namesrv="127.0.0.1:9876") as admin:
        admin.topics.create("orders", queues=4)
        admin.messages.send("orders", b"hello", tags="paid")
        print(admin.topics.describe("orders").messages)

:func:`connect` gives calls that block, :mod:`cometmq.admin.aio` the same for asyncio. A refused request raises
:class:`cometmq.errors.BrokerError` with the server's code, remark and address; its text says what to do.

==============  =======================================================================================================
module          holds
==============  =======================================================================================================
``operation``   a call before anything is sent: a generator of requests, which takes their answers
``servers``     name servers and brokers, routes
``topics``      topics
``groups``      consumer groups, connections
``offsets``     where groups are, and moving them
``messages``    messages by id, key and place; sending one
``sending``     sending many: which messages go into which request, and their results
``encoding``    messages as they stand in requests
``cluster``     brokers' state and settings, key-value store
``results``     what calls return
``channels``    runs operations on asyncio
``aio``         the calls for asyncio
``blocking``    the calls for plain code
==============  =======================================================================================================
"""

from __future__ import annotations

from cometmq.admin.addresses import NAMESRV_DEFAULT, NAMESRV_VARIABLES
from cometmq.admin.blocking import Admin, Sender, connect
from cometmq.admin.offsets import EARLIEST_MS, LATEST_MS
from cometmq.admin.results import (
    BrokerRef,
    BrokerStatus,
    ConsumeMode,
    GroupDescription,
    GroupInFlight,
    GroupLag,
    GroupMembers,
    GroupProgress,
    QueueEnds,
    QueueInFlight,
    QueueOffset,
    QueueProgress,
    QueueRange,
    ReviveState,
    SendReport,
    SendResult,
    TopicDescription,
)
from cometmq.admin.sending import SendLimits
from cometmq.client.send.outgoing import OutgoingMessage, SendStatus
from cometmq.client.trace.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
)
from cometmq.store_config.request_modes import MessageRequestMode

__all__ = [
    "Admin",
    "BrokerRef",
    "BrokerStatus",
    "ConsumeMode",
    "EARLIEST_MS",
    "EndTransactionTrace",
    "GroupDescription",
    "GroupInFlight",
    "GroupLag",
    "GroupMembers",
    "GroupProgress",
    "LATEST_MS",
    "MessageRequestMode",
    "NAMESRV_DEFAULT",
    "NAMESRV_VARIABLES",
    "OutgoingMessage",
    "PubTrace",
    "QueueEnds",
    "QueueInFlight",
    "QueueOffset",
    "QueueProgress",
    "QueueRange",
    "RecallTrace",
    "ReviveState",
    "SendLimits",
    "SendReport",
    "SendResult",
    "SendStatus",
    "Sender",
    "SubAfterTrace",
    "SubBeforeTrace",
    "TopicDescription",
    "TraceRecord",
    "connect",
]
