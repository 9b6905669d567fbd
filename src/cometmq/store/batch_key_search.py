"""The search by key in topics of inner batches: the index knows no keys of messages inside, so it reads the topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cometmq._engine import KeySearch, Message, Reader

__all__ = ["BatchKeySearch"]


_TRANSACTION_BITS: Final = 0xC
_HALF: Final = 0x4


def _is_no_message_of_queues(record: Message) -> bool:
    return record.is_inner_batch or record.sys_flag & _TRANSACTION_BITS == _HALF


class BatchKeySearch(Iterator[Message]):
    """An iterator over the messages of a topic that have a key, or that unique id, newest first. One thread at a time.

    Messages inside batches are found by their own keys. A batch whose record has the key, as a whole, is returned as
    its record, and a half message, which no queue has, as well: the index finds both.
    """

    def __init__(self, key: str, limit: int | None, messages: Reader, records: KeySearch) -> None:
        """Merge the topic's messages, newest first, with the records that the index has for the key."""
        self._key = key
        self._left = limit
        self._messages = messages
        self._records = records
        self._message: Message | None = None
        self._record: Message | None = None

    def __repr__(self) -> str:
        """Return a short description."""
        return "<BatchKeySearch; iterate over it>"

    def __next__(self) -> Message:
        """Return the next older message or record."""
        if self._left == 0:
            self._messages.close()
            raise StopIteration
        if self._message is None:
            self._message = self._next_message()
        if self._record is None:
            self._record = next(filter(_is_no_message_of_queues, self._records), None)
        message, record = self._message, self._record
        if record is not None and (message is None or record.physical_offset > message.physical_offset):
            found, self._record = record, None
        elif message is not None:
            found, self._message = message, None
        else:
            self._messages.close()
            raise StopIteration
        if self._left is not None:
            self._left -= 1
        return found

    def _next_message(self) -> Message | None:
        for message in self._messages:
            if self._key in message.keys or self._key == message.unique_id:
                return message
        return None
