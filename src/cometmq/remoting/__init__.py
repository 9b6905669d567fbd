"""The remoting protocol: commands, their codes and bodies, and the two ends of a connection.

================  ==================================================================================================
module            holds
================  ==================================================================================================
``command``       one request or response; its bytes are made and read by the C codec
``codes``         request and response codes, generated from ``csrc/wire/codes.toml``
``members``       typed values of a command's fields
``bodies``        the JSON bodies as frozen dataclasses
``addresses``     ``host:port`` and lists of them
``exchange``      the client's end of one connection, without sockets: numbers, waiters, frames
``channel``       connections to one server, for asyncio
``sync_channel``  the same for threads
``signing``       hooks that sign requests, and add a namespace
``answers``       handlers, refusals, tables of handlers
``server``        the server's end: requests that C's socket loops pass to Python
================  ==================================================================================================
"""

from __future__ import annotations

from cometmq.remoting.command import Command, HeaderFormat, Language

__all__ = ["Command", "HeaderFormat", "Language"]
