# Sends in flight: the futures that senders hold, with the state that further attempts need. cometmq.client decides the
# outcome of a send; here it is kept, and waited for.
#
# All state is touched with the GIL held, which is the lock. The thread that completes a future writes the outcome
# before _is_done; a waiter adds itself to a list before it looks at _is_done, so that one of the two sees the other.
# Memory may be collected, and other threads run, wherever a Python object is made.
from _thread import allocate_lock as _allocate_lock

cdef object _take_first(list items):
    """Take the first item off; None from an empty list. Where two threads take, each item goes to one."""
    return items.pop(0) if items else None


cdef class SendFuture:
    """A result to come. Light: a send makes one, and nobody need ever look at it.

    Wait with :meth:`result`, from any thread but the producer's loop, or ``await`` it in a coroutine.
    """
    cdef bint _is_done
    cdef object _value                # of one that failed: the error's traceback as it was then
    cdef object _error
    cdef list _waiters, _callbacks

    def set_result(self, value):
        """Complete it; for the producer."""
        self._value = value
        self._finish()

    def set_error(self, error not None):
        """Complete it with an error; for the producer."""
        self._value = error.__traceback__
        self._error = error
        self._finish()

    cdef int _finish(self) except -1:
        self._is_done = True
        if self._waiters is not None:
            while (waiter := _take_first(self._waiters)) is not None:
                waiter.release()
        if self._callbacks is not None:
            while (callback := _take_first(self._callbacks)) is not None:
                try:
                    self._call(callback)
                except BaseException:
                    self._finish()     # sys.exit() in one callback is not to cost the others
                    raise
        return 0

    cdef int _call(self, callback) except -1:
        try:
            callback(self)
        except Exception as error:
            # It is the user's; the loop and the other callbacks go on.
            from asyncio import _get_running_loop
            loop = _get_running_loop()
            if loop is not None:
                loop.call_exception_handler({"message": "a callback of a send raised", "exception": error})
            else:
                # The thread that filled the batch reports its failure.
                from logging import getLogger
                getLogger("cometmq.client").error("a callback of a send raised", exc_info=error)
        return 0

    # The methods that a future of a batch's message answers for its batch.

    cdef bint _done(self):
        return self._is_done

    cdef object _outcome(self):
        return self._value

    cdef object _why(self):
        return self._error

    cdef object _trace(self):
        return self._value

    cdef int _require_other_thread(self) except -1:
        return 0

    cdef int _add_waiter(self, waiter) except -1:
        cdef list fresh
        if self._waiters is None:
            fresh = []
            if self._waiters is None:      # no other thread came between
                self._waiters = fresh
        self._waiters.append(waiter)
        return 0

    cdef int _add_callback(self, callback) except -1:
        cdef object one
        cdef list fresh
        if self._callbacks is None:
            fresh = []
            if self._callbacks is None:    # no other thread came between
                self._callbacks = fresh
        self._callbacks.append(callback)
        if self._is_done:
            while (one := _take_first(self._callbacks)) is not None:
                one(self)
        return 0

    cdef int _wait(self, timeout_s) except -1:
        self._require_other_thread()
        waiter = _allocate_lock()
        waiter.acquire()
        self._add_waiter(waiter)
        if not self._done() and not waiter.acquire(True, -1 if timeout_s is None else timeout_s):
            raise _errors.RequestTimeout(f"no result of the send within {timeout_s} s; it goes on")
        return 0

    def done(self):
        """True when the result or error is there."""
        return self._done()

    def result(self, timeout_s=None, *, timeout=None):
        """Wait and return the :class:`cometmq.client.SendResult`.

        Args:
            timeout_s: longest wait in seconds; None for as long as the send takes, which has a limit of its own.
            timeout: the same, under the name that :mod:`concurrent.futures` has for it.

        Raises:
            SendFailed: the send was given up.
            RequestTimeout: ``timeout_s`` is over; the send goes on.
            LimitReached: no room for it (back-pressure).
        """
        if not self._done():
            self._wait(timeout_s if timeout is None else timeout)
        error = self._why()
        if error is not None:
            # Several waiters may raise it, or one of them twice: notes that one adds are not for the others.
            raise error.with_traceback(self._trace())
        return self._outcome()

    def exception(self, timeout_s=None, *, timeout=None):
        """Wait and return the error, None where there is none. Raises as :meth:`result` where the wait ends first."""
        if not self._done():
            self._wait(timeout_s if timeout is None else timeout)
        return self._why()

    def add_done_callback(self, callback not None):
        """Call ``callback(self)`` once when it is done: on the producer's loop, or at once where it is done already."""
        self._add_callback(callback)

    def __await__(self):
        """Wait on the running loop."""
        return _awaited(self)

    def __repr__(self):
        """Return whether it is done, and how."""
        if not self._done():
            return "SendFuture(under way)"
        error = self._why()
        return f"SendFuture({error!r})" if error is not None else f"SendFuture({self._outcome()!r})"


def _awaited(SendFuture future):
    if not future._done():
        from asyncio import get_running_loop
        loop = get_running_loop()
        arrived = loop.create_future()
        future.add_done_callback(_Arrival.__new__(_Arrival, loop, arrived))
        yield from arrived
    return future.result()


@cython.final
cdef class _Arrival:
    """Completes a future of asyncio on its loop: at once where that is the loop that runs, by a wake-up otherwise."""
    cdef object _loop, _arrived

    def __cinit__(self, loop, arrived):
        self._loop = loop
        self._arrived = arrived

    def __call__(self, _):
        from asyncio import _get_running_loop
        if _get_running_loop() is self._loop:
            self.notify()
        else:
            self._loop.call_soon_threadsafe(self.notify)

    def notify(self):
        if not self._arrived.done():
            self._arrived.set_result(None)


DEFAULT_REGION = "DefaultRegion"              # of a broker that says none

# cometmq.client.send.outgoing.STATUS_OF and cometmq.remoting's MessageQueue, which need this module; looked up when
# they are first asked for.
cdef object _status_of = None
cdef object _queue_class = None


@cython.final
cdef class SendResult:
    """Where a message was stored.

    Immutable. Fields are made on demand: a program that sends millions looks at the status alone.

    Attributes:
        attempts: how often it was sent; after more than one it may be stored more than once.
    """
    cdef readonly int attempts
    cdef int32_t _index                       # its place in a batch, or -1
    cdef SendAnswer _answer
    cdef object _asked                        # the queue that it was sent to
    # the id itself, properties that have it, or the batch of which it is a part
    cdef object _id_source

    def __init__(self, SendAnswer answer not None, asked not None, str unique_id not None, int attempts=1, index=None):
        """Keep the broker's answer and the queue that it was asked for; ``index`` is the place in a batch."""
        self._answer = answer
        self._asked = asked
        self._id_source = unique_id
        self.attempts = attempts
        self._index = -1 if index is None else index

    @property
    def status(self):
        """The broker's promise."""
        global _status_of
        if _status_of is None:
            from cometmq.client.send.outgoing import STATUS_OF
            _status_of = STATUS_OF
        return _status_of[self._answer.code]

    @property
    def unique_id(self):
        """The id that was given to the message here (``UNIQ_KEY``); of a batch all of them, with commas."""
        if type(self._id_source) is bytes:
            self._id_source = _unique_id_in(<bytes>self._id_source)
        elif type(self._id_source) is PendingBatch:
            self._id_source = (<PendingBatch>self._id_source)._unique_id(<uint32_t>self._index)
        return self._id_source

    @property
    def message_id(self):
        """The id by which consumers see the message: its unique id, or what the broker gave to a whole batch."""
        whole = self._answer.batch_unique_id if self._index < 0 else None
        return whole or self.unique_id

    @property
    def offset_message_id(self):
        """The broker's own id: its address and the place in its log; of a batch all of them, with commas."""
        ids = self._answer.message_id or ""
        if self._index < 0:
            return ids
        each = ids.split(",")
        # A topic of inner batches has one id for all.
        return each[self._index] if self._index < len(each) else each[0]

    @property
    def queue(self):
        """The queue that has the message; of one that is held back the one that was asked for."""
        global _queue_class
        if self._answer.queue_id == self._asked.queue_id:
            return self._asked
        if _queue_class is None:
            from cometmq.remoting.bodies.message_queue import MessageQueue
            _queue_class = MessageQueue
        return _queue_class(topic=self._asked.topic, broker_name=self._asked.broker_name,
                            queue_id=self._answer.queue_id)

    @property
    def topic(self):
        """The topic."""
        return self._asked.topic

    @property
    def queue_offset(self):
        """Its place in the queue; of a batch that of the first. Of a message held back, that of where it waits."""
        return self._answer.queue_offset + max(self._index, 0)

    @property
    def transaction_id(self):
        """The broker's id for a transaction, or None."""
        return self._answer.transaction_id

    @property
    def region_id(self):
        """The broker's region, for traces."""
        return self._answer.region_id or DEFAULT_REGION

    @property
    def trace_on(self):
        """True where the broker asks for traces."""
        return self._answer.trace_on

    @property
    def recall_handle(self):
        """The handle that recalls a message held back by a timer, or None."""
        return self._answer.recall_handle

    def part(self, uint32_t index, str unique_id not None):
        """Return the result of one message of a batch: the one at ``index``, from 0, with its own id."""
        return _result(self._answer, self._asked, unique_id, self.attempts, <int32_t>index)

    def __repr__(self):
        """Return status and place."""
        place = f"{self.topic}/{self._asked.broker_name}/{self._answer.queue_id} at {self.queue_offset}"
        return f"SendResult({self.status.name}, {place}, {self.message_id})"


cdef SendResult _result(SendAnswer answer, object asked, object id_source, int attempts, int32_t index):
    cdef SendResult result = SendResult.__new__(SendResult)
    result._answer = answer
    result._asked = asked
    result._id_source = id_source
    result.attempts = attempts
    result._index = index
    return result


@cython.final
cdef class PendingSend(SendFuture):
    """One message, or batch, on its way: the future that its sender holds, and what further attempts need.

    It is also what the network calls with an answer. One that says "stored", of a send that nobody watches, ends it
    here; any other goes to its engine. Its result is made when it is first asked for.
    """
    cdef readonly object engine
    cdef public SendRequest request           # None when it is over
    cdef public object policy, queue, chooser, context
    cdef public object stored                 # by a broker that did not store it as safely as asked
    cdef public list brokers
    cdef public double began_s, deadline_s
    cdef public int attempts
    cdef public int64_t pressure_bytes
    cdef public bint is_fixed                 # it goes to this queue or to none
    cdef public bint is_uncertain
    cdef public bint asked_route
    cdef bint _is_short                       # nothing but its future waits for its end
    cdef set _under_way
    cdef object _id_source                    # the id itself, or properties that have it
    cdef SendAnswer _answer                   # of which the result is made

    def __init__(self, engine not None, SendRequest request not None, str unique_id not None, policy not None, *,
                 double began_s, int64_t timeout_ms):
        self.engine = engine
        self.begin(request, unique_id, policy, began_s=began_s, timeout_ms=timeout_ms)

    def begin(self, SendRequest request not None, str unique_id, policy not None, *, double began_s,
              int64_t timeout_ms):
        """Take what is sent; without an id it is the one among the request's properties."""
        self.request = request
        self.policy = policy
        self.began_s = began_s
        self.deadline_s = began_s + timeout_ms / 1000.0
        self.brokers = []
        self._id_source = request.properties if unique_id is None else unique_id

    def take_fast_path(self, set under_way not None):
        """Nobody watches it: the answer "stored" ends it without its engine, and takes it out of ``under_way``."""
        self._under_way = under_way
        self._is_short = True

    @property
    def unique_id(self):
        """The id that its message was given; of a batch all of them, with commas; of a batch that nobody watches the
        batch's own.
        """
        if type(self._id_source) is bytes:
            self._id_source = _unique_id_in(<bytes>self._id_source)
        return self._id_source

    @property
    def topic(self):
        """The topic on the wire, while the send is under way."""
        return (<object>self.request).topic

    cdef object _outcome(self):
        if self._value is None and self._answer is not None:
            self._value = _result(self._answer, self.queue, self._id_source, self.attempts, -1)
        return self._value

    cdef object _part(self, PendingBatch pending, uint32_t index):
        """The result of one message of the batch that this is the send of."""
        if self._answer is not None:
            return _result(self._answer, self.queue, pending, self.attempts, <int32_t>index)
        return self._value.part(index, pending._unique_id(index))

    cdef int _require_other_thread(self) except -1:
        self.engine.require_other_thread()
        return 0

    def __call__(self, answer):
        """Take what came to the attempt under way; on the loop."""
        if self._is_done:
            return    # Ctrl-C ended it before
        if self._is_short and type(answer) is SendAnswer and (<SendAnswer>answer).code == 0:
            self._under_way.discard(self)
            self.request = None
            self._answer = <SendAnswer>answer
            self._finish()
            return
        self._is_short = False
        if self.brokers is None:
            self.brokers = [self.queue.broker_name]
        self.engine.answered(self, answer)


@cython.final
cdef class Gathered(SendFuture):
    """One message of a batch; the batch's outcome is its own."""
    cdef PendingBatch _pending
    cdef uint32_t _index

    def __init__(self):
        raise TypeError("an Accumulator makes the futures of its messages")

    def set_result(self, value):
        """Not for a part: its batch is completed."""
        raise TypeError("a message of a batch is done when the batch is")

    def set_error(self, error not None):
        """Not for a part: its batch is completed."""
        raise TypeError("a message of a batch is done when the batch is")

    @property
    def unique_id(self):
        """The id that the message was given."""
        return self._pending._unique_id(self._index)

    cdef bint _done(self):
        return self._pending.future._is_done

    cdef object _outcome(self):
        if self._value is None:
            self._value = self._pending.future._part(self._pending, self._index)
        return self._value

    cdef object _why(self):
        return self._pending.future._error

    cdef object _trace(self):
        return self._pending.future._value

    cdef int _require_other_thread(self) except -1:
        return self._pending.future._require_other_thread()

    cdef int _add_waiter(self, waiter) except -1:
        return self._pending.future._add_waiter(waiter)

    cdef int _add_callback(self, callback) except -1:
        return self._pending.future._add_callback(_PartCallback.__new__(_PartCallback, self, callback))


@cython.final
cdef class _PartCallback:
    """Calls the callback for a message of a batch with the future of that message."""
    cdef object _part, _callback

    def __cinit__(self, part, callback):
        self._part = part
        self._callback = callback

    def __call__(self, _):
        self._callback(self._part)
