"""A broker: the control plane in Python, over loops in C that send and pull.

=====================  ================================================================================================
module                 holds
=====================  ================================================================================================
``config``             how a broker runs, from every source of settings
``server``             :class:`Broker`: store, loops, control plane and registration put together; start and stop
``control``            the control plane, put together from the parts below, without sockets
``plane``              what it asks of the loops; ``native_plane`` is the compiled one
``link``               what it asks of connected clients
``topics, groups``     topics and consumer groups: made, changed, listed, deleted
``registry, clients``  who is connected; heartbeats, notices, expiry
``locks``              queues locked by orderly consumers
``sends, send_back``   sends that the loops hand over; messages to be tried again or given up
``offsets, delays``    progress of groups and of delay levels, kept and moved
``queries``            finding messages; ``client_forwarding``: requests passed on to clients
``queues``             bounds and times of queues
``admin, stats``       state, settings, statistics
``registration``       name servers
``log_lists``          lists of names in log lines
``upstream_messages``  upstream's texts
=====================  ================================================================================================
"""

from __future__ import annotations
