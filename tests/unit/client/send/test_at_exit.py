"""Checks: a program that exits with an open producer has its messages stored, or logs how many were not."""

from __future__ import annotations

import socket
import subprocess
import sys

import cometmq.admin
from cometmq.testing import cluster

_LIMIT_S = 60

# Nothing times out by itself; the arguments are the name server, the way and the longest wait at the exit.
_PROGRAM = """
import logging, sys
from cometmq.client import Producer
from cometmq.client.send import at_exit

at_exit._LIMIT_S = float(sys.argv[3])
logging.basicConfig()
patient = dict(send_msg_timeout_ms=600_000, mq_client_api_timeout_ms=600_000)
producer = Producer("p", name_servers=sys.argv[1], accumulate=sys.argv[2] == "accumulate", **patient).start()
for number in range(100):
    producer.send_async("orders", b"%d" % number)
"""


def _exit_with_open_producer(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, timeout=_LIMIT_S, check=True
    )
    return done.stderr.decode()


def test_open_producers_are_flushed_at_exit() -> None:
    with cluster() as running:
        assert _exit_with_open_producer(running.name_server_address, "single", "50") == ""
        assert _exit_with_open_producer(running.name_server_address, "accumulate", "50") == ""
        with cometmq.admin.connect(namesrv=running.name_server_address) as admin:
            assert len(admin.messages.peek("orders", limit=1000)) == 200


_LATE = """
import atexit, sys, threading
from cometmq.client import Producer

def at_the_end():
    producer.send_async("late", b"atexit")

def in_a_thread():
    threading.main_thread().join()
    for number in range(100):
        producer.send_async("late", b"%d" % number)

producer = Producer("p", name_servers=sys.argv[1]).start()
atexit.register(at_the_end)  # runs before what was registered earlier
producer.send("late", b"first")
threading.Thread(target=in_a_thread).start()
"""


def test_sends_of_threads_and_functions_that_outlive_the_main_thread_are_flushed() -> None:
    with cluster() as running:
        arguments = [sys.executable, "-c", _LATE, running.name_server_address]
        done = subprocess.run(arguments, capture_output=True, timeout=_LIMIT_S, check=True)
        assert done.stderr == b""
        with cometmq.admin.connect(namesrv=running.name_server_address) as admin:
            assert len(admin.messages.peek("late", limit=1000)) == 102


def test_unsent_messages_are_counted_at_exit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        warning = _exit_with_open_producer(f"127.0.0.1:{silent.getsockname()[1]}", "single", "0.2")
    assert "100 sends of producer group p were not acknowledged when the interpreter exited" in warning
