"""Transactions as clients send them: half messages, their ends, and a connection that is asked about them."""

from __future__ import annotations

import socket
import struct
import time

from cometmq._engine import parse_message_id
from cometmq.remoting.bodies.heartbeat import HeartbeatData, ProducerData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel

TIMEOUT_MS = 30_000
COMMIT, ROLLBACK = 8, 12


class AskedProducer:
    """A producer's connection that is asked about transactions."""

    def __init__(self, address: str, group: str) -> None:
        self._group = group
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_MS / 1_000)
        data = HeartbeatData(client_id="asked", producers=(ProducerData(group_name=group),))
        try:
            self._send(Command(code=RequestCode.HEART_BEAT, body=data.to_json(), opaque=1))
            assert self._next().code == ResponseCode.SUCCESS
        except OSError:
            self._socket.close()
            raise

    def _send(self, request: Command) -> None:
        self._socket.sendall(request.encode())

    def exchange(self, frame: bytes) -> Command:
        """Send a frame as it is, and return the answer."""
        self._socket.sendall(frame)
        return self._next()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionResetError
            data += part
        return data

    def _next(self) -> Command:
        prefix = self._read(4)
        return Command.decode(prefix + self._read(struct.unpack(">I", prefix)[0]))

    def question(self) -> Command:
        """Wait for the next question."""
        request = self._next()
        while request.code != RequestCode.CHECK_TRANSACTION_STATE:
            request = self._next()
        assert request.is_oneway
        return request

    def answer(self, question: Command, outcome: int) -> None:
        """Send the end, one way, as clients do."""
        fields = end_fields(question, outcome, group=self._group) | {"fromTransactionCheck": "true"}
        self._send(Command(code=RequestCode.END_TRANSACTION, fields=fields).as_oneway())

    def interrupt(self) -> None:
        """End the wait of another thread by an OSError."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def send_half(
    channel: Channel, body: bytes, *, group: str = "p", unique: str = "U1", topic: str = "orders", more: str = ""
) -> Command:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02TAGS\x01t\x02UNIQ_KEY\x01{unique}\x02{more}"
    fields = dict.fromkeys("fhj", "0") | {"a": group, "b": topic, "c": "TBW102", "d": "4", "e": "1"}
    fields["g"] = str(time.time_ns() // 1_000_000)
    fields |= {"i": properties, "k": "false", "m": "false"}
    return channel.invoke(Command(code=RequestCode.SEND_MESSAGE_V2, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


def place_of(answer: Command) -> dict[str, str]:
    """Return the fields by which an end names a half message: of a send's answer, or of a question."""
    if "commitLogOffset" in answer.fields:
        return {name: answer.fields[name] for name in ("commitLogOffset", "tranStateTableOffset")}
    _, physical_offset = parse_message_id(answer.fields["msgId"])
    return {"commitLogOffset": str(physical_offset), "tranStateTableOffset": answer.fields["queueOffset"]}


def end_fields(half: Command, outcome: int, *, group: str) -> dict[str, str]:
    return place_of(half) | {"producerGroup": group, "commitOrRollback": str(outcome), "msgId": "U1"}


def end(channel: Channel, half: Command, outcome: int, *, group: str = "p", from_check: bool = False) -> int:
    fields = end_fields(half, outcome, group=group) | {"fromTransactionCheck": "true" if from_check else "false"}
    return channel.invoke(Command(code=RequestCode.END_TRANSACTION, fields=fields), timeout_ms=TIMEOUT_MS).code
