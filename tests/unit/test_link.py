"""Checks: one connection of a client without the event loop: over a socket pair, whose other end says what it likes."""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from cometmq._engine import Link, SendAnswer, SendRequest
from cometmq.errors import ForkedClient, InvalidArgument, LimitReached, MalformedCommand
from cometmq.remoting.command import Command, HeaderFormat
from support.client_requests import PULL, SEND

STORED = {"msgId": "id", "queueId": "1", "queueOffset": "5"}
FOUND = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
LONG_MS = 60_000


class Ends:
    """A link and the other end of its socket."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.asked: list[Any] = []
        self.sent_away: list[Any] = []
        self.failures: list[Exception] = []
        self.wakes = 0
        self.link = Link(
            ours.detach(),
            format=int(HeaderFormat.ROCKETMQ),
            wake=self._wake,
            on_request=self.asked.append,
            on_go_away=lambda *what: self.sent_away.append(what),
            on_failure=self.failures.append,
        )
        self._rest = b""

    def _wake(self) -> None:
        self.wakes += 1

    def requests(self, count: int) -> list[Command]:
        """Return the requests that the link has sent; it is driven meanwhile as the loop would."""
        found: list[Command] = []
        self.theirs.settimeout(10)
        while len(found) < count:
            while len(self._rest) < 4 or len(self._rest) < 4 + int.from_bytes(self._rest[:4], "big"):
                self.link.turn()
                self._rest += self.theirs.recv(1 << 20)
            end = 4 + int.from_bytes(self._rest[:4], "big")
            found.append(Command.decode(self._rest[:end]))
            self._rest = self._rest[end:]
        return found

    def say(self, data: bytes) -> bool:
        """Send bytes and have the link read them all."""
        self.theirs.settimeout(0)
        is_open = True
        while data:
            with suppress(BlockingIOError):
                data = data[self.theirs.send(data[:50_000]) :]
            is_open = self.link.receive()
        return is_open


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    with closing(made.theirs):
        yield made
        made.link.close()


def stored(request: Command, **fields: str) -> bytes:
    return request.response(0, fields={**STORED, **fields}).encode()


def begin(ends: Ends, request: Any = SEND, **options: Any) -> list[Any]:
    """Begin a request; the list gets its outcome."""
    told: list[Any] = []
    assert ends.link.begin(request, told.append, options.pop("timeout_ms", LONG_MS), **options)
    return told


# --- Answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_in_pieces_of_any_size(ends: Ends) -> None:
    told = begin(ends)
    (request,) = ends.requests(1)
    for byte in stored(request, TRACE_ON="false"):
        assert told == []
        assert ends.say(bytes((byte,)))
    (answer,) = told
    assert (answer.queue_id, answer.queue_offset, answer.message_id, answer.trace_on) == (1, 5, "id", False)
    assert ends.link.waiting == 0


def test_many_answers_in_one_piece_and_in_any_order(ends: Ends) -> None:
    told = [begin(ends) for _ in range(500)]
    answers = [stored(request, queueOffset=str(at)) for at, request in enumerate(ends.requests(500))]
    random.Random(1).shuffle(answers)
    assert ends.say(b"".join(answers))
    assert [[answer.queue_offset for answer in one] for one in told] == [[at] for at in range(500)]


def test_answers_that_nobody_waits_for_are_dropped(ends: Ends) -> None:
    told = begin(ends)
    (request,) = ends.requests(1)
    answer = stored(request)
    unknown = [stored(request.with_opaque(opaque)) for opaque in (64, 1, -1, 2**31 - 1, -(2**31))]
    assert ends.say(b"".join(unknown) + answer + answer)
    assert len(told) == 1
    assert ends.link.dropped_answers == len(unknown) + 1
    assert ends.say(b'\0\0\0\x26\0\0\0\x22{"code":0,"flag":1,"extFields":{}}')
    assert ends.link.dropped_answers == len(unknown) + 2


def test_an_answer_after_the_time_is_dropped(ends: Ends) -> None:
    told = begin(ends, timeout_ms=0)
    (request,) = ends.requests(1)
    ((on_answer, code, timeout_ms, is_silent),) = ends.link.expire(2**62)
    assert (code, timeout_ms, is_silent) == (310, 0, True)
    on_answer("over")
    assert ends.say(stored(request))
    assert told == ["over"]
    assert ends.link.dropped_answers == 1


def test_a_late_request_among_others_is_not_silent(ends: Ends) -> None:
    late, quick = begin(ends, timeout_ms=5), begin(ends, PULL)
    requests = ends.requests(2)
    ends.say(requests[1].response(0, fields=FOUND, body=b"records").encode())
    assert quick[0].body == b"records"
    assert [what[1:] for what in ends.link.expire(2**61)] == [(310, 5, False)]
    assert late == []


def test_server_that_lost_count_of_a_frame_is_taken_for_dead(ends: Ends) -> None:
    """A length that is too large makes every later answer a part of that frame."""
    ends.say(b"\0\x10\0\0\0\0\0\x40")
    began_ms = ends.link.active_ms
    begin(ends, deadline_ms=began_ms + 29_999)
    (request,) = ends.requests(1)
    ends.say(stored(request))
    assert [what[3] for what in ends.link.expire(began_ms + 29_999)] == [False]
    begin(ends, deadline_ms=began_ms + 30_000)
    (request,) = ends.requests(1)
    ends.say(stored(request))
    assert [what[3] for what in ends.link.expire(began_ms + 30_000)] == [True]


def test_large_frames_one_after_the_other_are_not_stuck(ends: Ends) -> None:
    told = begin(ends)
    begin(ends, deadline_ms=10)
    (request, _) = ends.requests(2)
    answer = stored(request)
    ends.say(answer[:9])
    ends.say(answer[9:])
    assert len(told) == 1
    assert [what[3] for what in ends.link.expire(ends.link.active_ms + 60_000)] == [False]


def test_only_those_whose_time_is_over_expire(ends: Ends) -> None:
    for deadline in (30, 10, 20):
        begin(ends, deadline_ms=deadline)
    assert ends.link.earliest_ms == 10
    assert len(ends.link.expire(9)) == 0
    assert len(ends.link.expire(20)) == 2
    assert ends.link.earliest_ms == 30
    assert len(ends.link.expire(30)) == 1
    assert ends.link.expire(2**62) == []
    assert ends.link.waiting == 0


def test_an_answer_without_its_members_fails_that_request_alone(ends: Ends) -> None:
    bad, good = begin(ends), begin(ends)
    first, second = ends.requests(2)
    assert ends.say(first.response(0).encode() + stored(second))
    assert isinstance(bad[0], MalformedCommand)
    assert isinstance(good[0], SendAnswer)
    many = begin(ends)
    (third,) = ends.requests(1)
    assert ends.say(third.response(0, fields={f"f{i}": "x" for i in range(65)}).encode())
    assert isinstance(many[0], MalformedCommand)


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff\0\0\0\0",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\0\0\0\3\0\0\0\0",
        b"\0\0\0\x10\0\0\0\x20" + bytes(64),
        b"\0\0\0\x10\7\0\0\4" + bytes(64),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b'\0\0\0\x14\0\0\0\x10{"code":"eleven"',
    ],
)
def test_invalid_frames_are_rejected(ends: Ends, data: bytes) -> None:
    told = begin(ends)
    with pytest.raises(MalformedCommand):
        ends.say(data)
    (on_answer,) = ends.link.close()
    on_answer("lost")
    assert told == ["lost"]


def test_a_length_gets_memory_only_as_its_bytes_come(ends: Ends) -> None:
    told = begin(ends, PULL)
    (request,) = ends.requests(1)
    frame = request.response(0, fields=FOUND, body=bytes(15 << 20)).encode()
    assert ends.say(frame)
    assert len(told[0].body) == 15 << 20
    assert ends.link.received_bytes == len(frame)
    with pytest.raises(MalformedCommand):
        ends.say(b"\1\0\0\1" + bytes(60))


@pytest.mark.parametrize("seed", range(20261122, 20261128))
def test_random_bytes_end_in_an_error_or_an_answer(seed: int) -> None:
    chooser = random.Random(seed)
    for _ in range(300):
        ends = Ends()
        told = begin(ends)
        (request,) = ends.requests(1)
        damaged = bytearray(stored(request) + Command(code=40, fields={"a": "b"}, flag=2).encode())
        for _ in range(chooser.choice((1, 2, 8))):
            damaged[chooser.randrange(len(damaged))] = chooser.randrange(256)
        try:
            ends.say(bytes(damaged))
        except MalformedCommand:
            assert ends.link.waiting + len(told) == 1
        assert len(told) + len(ends.link.close()) == 1 or ends.sent_away
        assert not ends.failures or all(isinstance(error, MalformedCommand) for error in ends.failures)
        ends.theirs.close()


def test_an_answer_1500_sends_away_once(ends: Ends) -> None:
    first, again = begin(ends, timeout_ms=77), begin(ends, is_again=True)
    one, two = ends.requests(2)
    assert ends.say(one.response(1500).encode() + two.response(1500).encode())
    ((request, on_answer, deadline_ms, timeout_ms),) = ends.sent_away
    assert (request, timeout_ms, deadline_ms > 0) == (SEND, 77, True)
    assert first == []
    assert again[0].code == 1500
    on_answer("elsewhere")
    assert first == ["elsewhere"]


def test_requests_of_the_server_are_handed_out_between_answers(ends: Ends) -> None:
    told = begin(ends)
    (request,) = ends.requests(1)
    assert ends.say(Command(code=40, fields={"a": "b"}, opaque=0, flag=2).encode() + stored(request))
    assert [(parts[0], parts[6]) for parts in ends.asked] == [(40, {"a": "b"})]
    assert len(told) == 1
    assert ends.link.reply(Command(code=0, flag=1).encode())
    assert ends.requests(1)[0].is_response


# --- Callbacks --------------------------------------------------------------------------------------------------------


def test_a_raising_callback_takes_nothing_from_the_others(ends: Ends) -> None:
    def fails(answer: object) -> None:
        raise ValueError("mine")

    assert ends.link.begin(SEND, fails, LONG_MS)
    told = begin(ends)
    assert ends.say(b"".join(stored(request) for request in ends.requests(2)))
    assert len(told) == 1
    assert [str(error) for error in ends.failures] == ["mine"]


def test_an_interrupt_in_a_callback_gets_out_and_loses_no_answer(ends: Ends) -> None:
    def interrupts(answer: object) -> None:
        raise KeyboardInterrupt

    assert ends.link.begin(SEND, interrupts, LONG_MS)
    told = begin(ends)
    with pytest.raises(KeyboardInterrupt):
        ends.say(b"".join(stored(request) for request in ends.requests(2)))
    assert len(told) == 1


def test_the_loop_is_asked_for_although_ctrl_c_came_before() -> None:
    asked: list[str] = []

    def wake() -> None:
        asked.append("wake")
        if len(asked) == 1:
            raise KeyboardInterrupt

    ours, theirs = socket.socketpair()
    with closing(theirs):
        nobody: Any = asked.append
        link = Link(ours.detach(), format=1, wake=wake, on_request=nobody, on_go_away=nobody, on_failure=nobody)
        # The first request's time is an earlier one than none: the loop has to look at its clock.
        with pytest.raises(KeyboardInterrupt):
            link.begin(SEND, asked.append, LONG_MS)
        assert asked == ["wake", "wake"]
        link.turn()
        link.begin(SEND, asked.append, 1)
        assert asked == ["wake", "wake", "wake"]
        link.close()


def test_a_callback_may_close_the_link(ends: Ends) -> None:
    left: list[Any] = []
    assert ends.link.begin(SEND, lambda answer: left.extend(ends.link.close()), LONG_MS)
    told = begin(ends)
    assert not all([ends.say(b"".join(stored(request) for request in ends.requests(2))), not ends.link.is_closed])
    assert len(left) == 1
    assert told == []
    assert not ends.link.begin(SEND, told.append, LONG_MS)
    assert not ends.link.reply(b"")
    assert not ends.link.receive()


def test_sends_of_a_callback_go_out_with_the_others(ends: Ends) -> None:
    told: list[Any] = []

    def again(answer: object) -> None:
        assert ends.link.begin(SEND, told.append, LONG_MS)

    for _ in range(3):
        assert ends.link.begin(SEND, again, LONG_MS)
    assert ends.say(b"".join(stored(request) for request in ends.requests(3)))
    assert ends.say(b"".join(stored(request) for request in ends.requests(3)))
    assert len(told) == 3


# --- Numbers and limits -----------------------------------------------------------------------------------------------


def test_requests_that_wait_for_long_keep_their_numbers(ends: Ends) -> None:
    held = [begin(ends, PULL) for _ in range(100)]
    pulls = ends.requests(100)
    for _ in range(30):
        told = [begin(ends) for _ in range(70)]
        assert ends.say(b"".join(stored(request) for request in ends.requests(70)))
        assert all(len(one) == 1 for one in told)
    assert ends.link.waiting == 100
    for at in range(100):
        ends.say(pulls[at].response(0, fields={**FOUND, "nextBeginOffset": str(at)}).encode())
    assert [one[0].next_begin_offset for one in held] == list(range(100))


def test_too_many_that_wait(ends: Ends) -> None:
    ends.theirs.settimeout(None)
    reading = threading.Thread(target=drain, args=(ends.theirs,))
    reading.start()
    for _ in range(65_536):
        ends.link.begin(PULL, print, LONG_MS)
    with pytest.raises(LimitReached, match="65536 requests"):
        ends.link.begin(PULL, print, LONG_MS)
    assert len(ends.link.close()) == 65_536
    reading.join(10)


def drain(source: socket.socket) -> None:
    while source.recv(1 << 20):
        pass


def test_a_server_that_does_not_read(ends: Ends) -> None:
    large = SEND.message(None, 0, b"", bytes(4 << 20), 0)
    with pytest.raises(LimitReached, match="reads too slowly"):
        send_some(ends, large, 30)
    assert ends.link.is_blocked
    assert ends.link.unsent_bytes > 64 << 20
    count = ends.link.waiting
    bodies = [request.body for request in read_by_another(ends, count)]
    assert bodies == [large.body] * count
    assert ends.link.unsent_bytes == 0
    assert not ends.link.is_blocked


def send_some(ends: Ends, request: SendRequest, count: int) -> None:
    for _ in range(count):
        begin(ends, request)


def read_by_another(ends: Ends, count: int) -> list[Command]:
    """Return the requests that the link sends, read by another thread while this one is its loop."""
    found: list[Command] = []
    ends.theirs.settimeout(10)

    def read() -> None:
        with ends.theirs.makefile("rb") as stream:
            for _ in range(count):
                prefix = stream.read(4)
                found.append(Command.decode(prefix + stream.read(int.from_bytes(prefix, "big"))))

    reading = threading.Thread(target=read)
    reading.start()
    while reading.is_alive():
        ends.link.turn()
        ends.link.flush()
    reading.join()
    return found


@pytest.mark.parametrize(
    "request_",
    [
        SEND.message(None, 0, b"", bytes(17 << 20), 0),
        SEND.message("\ud800", 0, b"", b"", 0),
        Command(code=1, fields={"a": 5}),  # type: ignore[dict-item]
        Command(code=1, fields={"a" * 40_000: ""}),
    ],
)
def test_requests_that_no_frame_can_hold_leave_nothing_behind(ends: Ends, request_: Any) -> None:
    with pytest.raises(InvalidArgument):
        begin(ends, request_)
    begin(ends)
    assert ends.requests(1)[0].code == 310
    assert ends.link.waiting == 1


def test_an_other_end_that_is_gone(ends: Ends) -> None:
    told = begin(ends)
    ends.theirs.close()
    with pytest.raises(ConnectionResetError):  # there, something was not read
        ends.link.receive()
    begin(ends)
    ends.link.turn()
    assert ends.link.write_errno != 0
    assert len(ends.link.close()) == 2
    assert ends.link.close() == []
    assert told == []


# --- Threads and forks ------------------------------------------------------------------------------------------------


def test_frames_of_many_threads_are_whole(ends: Ends) -> None:
    threads, each = 8, 500
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        writers = [threading.Thread(target=send_many, args=(ends, name, each)) for name in range(threads)]
        for writer in writers:
            writer.start()
        requests = read_by_another(ends, threads * each)
        for writer in writers:
            writer.join()
    finally:
        sys.setswitchinterval(switch_s)
    for name in range(threads):
        mine = [int(request.body[1:]) for request in requests if request.body[0] == name]
        assert mine == list(range(each)), "the order of one thread"
    assert len({request.opaque for request in requests}) == threads * each
    assert ends.wakes > 0


def send_many(ends: Ends, name: int, count: int) -> None:
    for at in range(count):
        assert ends.link.begin(SEND.message(None, 0, b"", bytes((name,)) + b"%d" % at, 0), print, LONG_MS)


def test_closing_while_threads_send() -> None:
    for _ in range(50):
        ends = Ends()
        reading = threading.Thread(target=drain, args=(ends.theirs,))
        reading.start()
        begun = [0] * 4
        started = threading.Barrier(5)

        def send(
            name: int, ends: Ends = ends, begun: list[int] = begun, ready: Callable[[], int] = started.wait
        ) -> None:
            ready()
            while ends.link.begin(SEND, print, LONG_MS):
                begun[name] += 1

        senders = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for sender in senders:
            sender.start()
        started.wait()
        left = ends.link.close()
        for sender in senders:
            sender.join(10)
        assert len(left) == sum(begun)
        reading.join(10)
        ends.theirs.close()


def test_a_forked_child_uses_nothing(ends: Ends) -> None:
    begin(ends)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                ends.link.begin(SEND, print, LONG_MS)
            except ForkedClient:
                try:
                    ends.link.receive()
                except ForkedClient:
                    ends.link.close()
                    status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    told = begin(ends)
    assert ends.say(b"".join(stored(request) for request in ends.requests(2)))
    assert len(told) == 1


def test_a_link_is_made_once(ends: Ends) -> None:
    with pytest.raises(RuntimeError):
        ends.link.__init__(0, format=0, wake=print, on_request=print, on_go_away=print, on_failure=print)
    assert "0 requests waiting" in repr(ends.link)
