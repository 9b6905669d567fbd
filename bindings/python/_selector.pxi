# Selector: an SQL92 expression over the properties of messages, compiled once.

@cython.final
cdef class Selector:
    """An SQL92 expression. Immutable; any thread may use it.

    Attributes:
        text: the expression.
        tail: the rest of it that upstream's grammar ignores; empty where there is none.

    Raises:
        InvalidArgument: upstream refuses the expression too; the message has the place and the reason.
        LimitReached: it is longer or deeper than ours may be.
    """
    cdef cmq_selector *_program
    cdef readonly str text, tail

    def __init__(self, str text not None):
        cdef cmq_slice source = _slice_of_text(text)
        cdef size_t tail = 0
        if self._program is not NULL:
            raise RuntimeError("the expression is compiled already")
        _check(cmq_selector_compile(source, &self._program, &tail))
        self.text = text
        self.tail = text.encode()[tail:].decode()

    def __dealloc__(self):
        cmq_selector_free(self._program)

    cdef bint selects(self, Message message) except -1:
        """Whether a message matches."""
        message._parse()
        return cmq_selector_evaluate(self._program, message._view.properties) == CMQ_SELECTOR_TRUE

    def matches(self, Message message not None):
        """Return whether a message matches: the expression is true for its properties."""
        return self.selects(message)

    def answer(self, bytes properties not None):
        """Evaluate over a property string: True or False, None where it is unknown, "error" where values do not
        compare.
        """
        cdef cmq_selector_answer answer = cmq_selector_evaluate(self._program, _slice_of_bytes(properties))
        if answer == CMQ_SELECTOR_ERROR:
            return "error"
        return None if answer == CMQ_SELECTOR_NULL else answer == CMQ_SELECTOR_TRUE


def bloom_positions(str entry not None, uint32_t error_percent, uint32_t entries):
    """Return the bits of a Bloom filter for so many entries at that rate of false passes, and an entry's places."""
    cdef cmq_bloom bloom
    cdef uint32_t positions[CMQ_BLOOM_HASHES_MAX]
    _check(cmq_bloom_init(&bloom, error_percent, entries))
    cmq_bloom_positions(&bloom, _slice_of_text(entry), positions)
    return bloom.bit_count, tuple([positions[i] for i in range(bloom.hash_count)])
