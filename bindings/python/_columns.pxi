# One value per message: Python's lists, numpy's and Arrow's arrays as a cmq_column, with as little work per message as
# each allows.
#
#   None                                    empty for every message (not bodies)
#   str, bytes                              the same for every message (not bodies)
#   list, tuple, other iterables            an element per message
#   numpy: S                                an element without its trailing NULs, as numpy itself gives it
#   numpy: V, structured, uint8 (n, width)  an element of fixed width, all of it
#   numpy: U, object                        as a list
# Arrow (__arrow_c_array__, __arrow_c_stream__): binary, string, large_*, *_view, fixed_size_binary, dictionaries of
# them
#
# Offsets, views and indices of an Arrow array may come from a file of somebody else's, so that they are checked before
# they are followed. The C data interface has no buffer sizes but for views; arrays of pyarrow's, which knows the sizes,
# check themselves (_validated).
#
# A _Column owns what the engine borrows: buffers, capsules and a tuple of the elements, so that nobody can take one
# away while the call runs without the GIL. numpy and pyarrow are not imported.

cdef enum _ColumnRole:
    _BODIES      # every message has one; text is refused, since nobody said how to encode it
    _TEXTS       # properties
    _TAGS        # texts that a subscription can name
    _KEYS        # an element may be a sequence of keys


cdef enum:
    # elements of a list whose heads are fetched early: mostly they lie where no hardware prefetcher looks
    _AHEAD = 16


@cython.final
@cython.no_gc
cdef class _Column:
    cdef cmq_column column
    cdef Py_ssize_t count            # elements; -1: any number
    cdef _ColumnRole role
    cdef str name                    # of the argument, for errors
    cdef object kept                 # owns the memory of the slices
    cdef list made                   # bytes made on the way
    cdef cmq_slice *slices
    cdef Py_buffer *buffers
    cdef Py_ssize_t buffer_count
    cdef ArrowSchema schema          # of a stream; release NULL: none
    cdef ArrowArray *chunks          # of a stream
    cdef Py_ssize_t chunk_count

    def __cinit__(self):
        self.count = -1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.buffer_count):
            PyBuffer_Release(&self.buffers[i])
        for i in range(self.chunk_count):
            if self.chunks[i].release is not NULL:
                self.chunks[i].release(&self.chunks[i])
        if self.schema.release is not NULL:
            self.schema.release(&self.schema)
        free(self.buffers)
        free(self.chunks)
        free(self.slices)

    cdef object _wrong(self, Py_ssize_t at, object value):
        cdef str wanted = "bytes-like" if self.role == _BODIES else "str, bytes or None"
        cdef str hint = ": encode it" if self.role == _BODIES and isinstance(value, str) else ""
        return _errors.WrongType(f"{self.name}[{at}] must be {wanted}, not {type(value).__name__}{hint}")

    cdef object _wrong_arrow(self, bytes layout):
        if layout == b"+s":
            return _errors.WrongType(f"{self.name} is a table or an Arrow array of structs: give one column of binary "
                                     f"values, such as table['body']")
        cdef str taken = "binary" if self.role == _BODIES else "binary or string"
        return _errors.WrongType(f"{self.name} must hold {taken} values, not the Arrow type of format "
                                 f"{layout.decode('ascii', 'replace')!r}")

    cdef int _check_body_layout(self, bytes layout) except -1:
        """Refuse text for bodies, as in lists."""
        if layout in (b"u", b"U", b"vu"):
            raise _errors.WrongType(f"{self.name} is an Arrow array of text; a body must be bytes: encode it "
                                    f"(array.cast('binary'))")
        return 0

    cdef int _allocate(self, Py_ssize_t count) except -1:
        self.slices = <cmq_slice *>malloc(<size_t>(count if count else 1) * sizeof(cmq_slice))
        if self.slices is NULL:
            raise MemoryError
        self.count = count
        self.column.kind = CMQ_COLUMN_SLICES
        self.column.slices = self.slices
        return 0

    cdef cmq_slice _at(self, Py_ssize_t i) noexcept:
        cdef cmq_slice slice = _NO_BYTES
        if self.column.kind == CMQ_COLUMN_ONE:
            slice = self.column.one
        elif self.column.kind == CMQ_COLUMN_SLICES:
            slice = self.slices[i]
        elif self.column.kind == CMQ_COLUMN_FIXED:
            slice.data = self.column.data + i * self.column.stride
            slice.bytes = self.column.width
        elif self.column.kind == CMQ_COLUMN_OFFSETS32:
            slice.data = self.column.data + self.column.offsets32[i]
            slice.bytes = <size_t>(self.column.offsets32[i + 1] - self.column.offsets32[i])
        elif self.column.kind == CMQ_COLUMN_OFFSETS64:
            slice.data = self.column.data + self.column.offsets64[i]
            slice.bytes = <size_t>(self.column.offsets64[i + 1] - self.column.offsets64[i])
        return slice

    cdef list _values(self, Py_ssize_t count):
        """The elements as bytes."""
        cdef Py_ssize_t i
        cdef cmq_slice slice
        cdef list values = []
        for i in range(count):
            slice = self._at(i)
            values.append(PyBytes_FromStringAndSize(<const char *>slice.data, <Py_ssize_t>slice.bytes))
        return values

    cdef _Column _checked_tags(self):
        """The column itself, when every element can be a tag."""
        cdef Py_ssize_t i
        if self.column.kind == CMQ_COLUMN_ONE:
            _check_tag(self.column.one, self.name)
        else:
            for i in range(self.count):
                _check_tag(self._at(i), self.name, i)
        return self

    # ---- elements of a sequence

    cdef int _from_tuple(self, tuple items) except -1:
        cdef Py_ssize_t i, count = len(items)
        self.kept = items
        self._allocate(count)
        for i in range(count):
            self._element(i, PyTuple_GET_ITEM(<PyObject *>items, i), count)
        return 0

    cdef int _from_list(self, list items) except -1:
        """A list may change while the engine works without the GIL, so the elements go into a tuple, in the same pass
        over them.
        """
        cdef Py_ssize_t i, count = len(items)
        cdef PyObject *item
        cdef tuple kept = PyTuple_New(count)
        PyObject_GC_UnTrack(kept)    # nobody may find it half filled
        self.kept = kept
        self._allocate(count)
        for i in range(count):
            if i >= PyList_GET_SIZE(<PyObject *>items):
                raise RuntimeError(f"{self.name} changed while it was read")
            if i + _AHEAD < PyList_GET_SIZE(<PyObject *>items):
                __builtin_prefetch(PyList_GET_ITEM(<PyObject *>items, i + _AHEAD))
            item = PyList_GET_ITEM(<PyObject *>items, i)
            Py_INCREF_BORROWED(item)
            PyTuple_SET_ITEM(<PyObject *>kept, i, item)
            self._element(i, item, count)
        return 0

    cdef inline int _element(self, Py_ssize_t at, PyObject *item, Py_ssize_t count) except -1:
        if PyBytes_CheckExact(item):
            self.slices[at].data = <const uint8_t *>PyBytes_AS_STRING(item)
            self.slices[at].bytes = <size_t>PyBytes_GET_SIZE(item)
            return 0
        return self._other_element(at, <object>item, count)

    cdef int _other_element(self, Py_ssize_t at, object item, Py_ssize_t count) except -1:
        if self.role == _BODIES:
            if item is None or isinstance(item, str) or not PyObject_CheckBuffer(item):
                raise self._wrong(at, item)
            self._add_buffer(at, item, count)
            return 0
        if item is None:
            self.slices[at] = _NO_BYTES
        elif isinstance(item, (str, bytes)):
            self.slices[at] = _slice_of_value(item, self.name)
        elif self.role == _KEYS and not PyObject_CheckBuffer(item) and hasattr(item, "__iter__"):
            if self.made is None:
                self.made = []
            joined = _joined_keys(item, self.name, at)
            self.made.append(joined)
            self.slices[at] = _slice_of_text(joined)
        else:
            raise self._wrong(at, item)
        return 0

    cdef int _add_buffer(self, Py_ssize_t at, object item, Py_ssize_t count) except -1:
        if self.buffers is NULL:
            self.buffers = <Py_buffer *>malloc(<size_t>count * sizeof(Py_buffer))
            if self.buffers is NULL:
                raise MemoryError
        cdef Py_buffer *buffer = &self.buffers[self.buffer_count]
        _get_bytes(item, buffer, self.name, at)
        self.buffer_count += 1
        self.slices[at].data = <const uint8_t *>buffer.buf
        self.slices[at].bytes = <size_t>buffer.len
        return 0

    # ---- numpy

    cdef int _from_buffer(self, object array) except -1:
        """An array by the buffer protocol: fixed-width elements in one dimension, or bytes in two."""
        self.buffers = <Py_buffer *>malloc(sizeof(Py_buffer))
        if self.buffers is NULL:
            raise MemoryError
        cdef Py_buffer *buffer = self.buffers
        PyObject_GetBuffer(array, buffer, PyBUF_RECORDS_RO)
        self.buffer_count = 1
        cdef bytes item = buffer.format if buffer.format is not NULL else b"B"
        item = item.lstrip(b"@=<>!|")
        cdef bint strings = item.endswith(b"s") and (item == b"s" or item[:-1].isdigit())
        cdef bint fixed = item.startswith(b"T{") or (item.endswith(b"x") and (item == b"x" or item[:-1].isdigit()))
        self.column.data = <const uint8_t *>buffer.buf
        if buffer.ndim == 1 and (strings or fixed):
            self.column.stride = buffer.strides[0]
            self._set_width(buffer.itemsize)
        elif buffer.ndim == 2 and item in (b"B", b"b", b"c") and (buffer.strides[1] == 1 or buffer.shape[1] <= 1):
            self.column.stride = buffer.strides[0]
            self._set_width(buffer.shape[1])
        else:
            raise _errors.WrongType(f"{self.name} must be a list, an Arrow array or a numpy array of fixed-width bytes "
                                    f"(dtype S, V, structured, or uint8 in two dimensions with contiguous rows), not "
                                    f"{type(array).__name__} of format {item.decode('ascii', 'replace')!r} in "
                                    f"{buffer.ndim} dimensions")
        self.count = buffer.shape[0]
        self.column.kind = CMQ_COLUMN_FIXED
        if strings or self.role != _BODIES:
            self._strip()
        return 0

    cdef int _set_width(self, Py_ssize_t width) except -1:
        if width > 0xFFFFFFFF:
            raise _errors.MessageTooLarge(f"the elements of {self.name} are {width} bytes wide")
        self.column.width = <uint32_t>width
        return 0

    cdef int _strip(self) except -1:
        """From fixed width to slices without trailing NULs."""
        cdef Py_ssize_t i
        cdef size_t size
        cdef const uint8_t *at
        self._allocate(self.count)
        for i in range(self.count):
            at = self.column.data + i * self.column.stride
            size = self.column.width
            while size > 0 and at[size - 1] == 0:
                size -= 1
            self.slices[i].data = at
            self.slices[i].bytes = size
        return 0

    # ---- Arrow

    cdef int _from_arrow_array(self, object array) except -1:
        array = _validated(array, self.name, self.role)
        schema_capsule, array_capsule = array.__arrow_c_array__()
        self.kept = (schema_capsule, array_capsule)
        self._from_chunks(<ArrowSchema *>PyCapsule_GetPointer(schema_capsule, "arrow_schema"),
                          <ArrowArray *>PyCapsule_GetPointer(array_capsule, "arrow_array"), 1)
        return 0

    cdef int _from_arrow_stream(self, object source) except -1:
        cdef Py_ssize_t capacity = 0
        source = _validated(source, self.name, self.role)
        capsule = source.__arrow_c_stream__()
        self.kept = capsule
        cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
        self._check_stream(stream, stream.get_schema(stream, &self.schema))
        while True:
            if self.chunk_count == capacity:
                capacity = capacity * 2 + 4
                self._grow_chunks(capacity)
            memset(&self.chunks[self.chunk_count], 0, sizeof(ArrowArray))
            self._check_stream(stream, stream.get_next(stream, &self.chunks[self.chunk_count]))
            if self.chunks[self.chunk_count].release is NULL:
                break
            self.chunk_count += 1
        self._from_chunks(&self.schema, self.chunks, self.chunk_count)
        return 0

    cdef int _grow_chunks(self, Py_ssize_t capacity) except -1:
        cdef ArrowArray *grown = <ArrowArray *>realloc(self.chunks, <size_t>capacity * sizeof(ArrowArray))
        if grown is NULL:
            raise MemoryError
        self.chunks = grown
        return 0

    cdef int _check_stream(self, ArrowArrayStream *stream, int result) except -1:
        if result == 0:
            return 0
        cdef const char *text = stream.get_last_error(stream)
        reason = (<bytes>text).decode("utf-8", "replace") if text is not NULL else f"error {result}"
        raise _errors.InvalidArgument(f"{self.name}: the Arrow stream failed: {reason}")

    cdef int _from_chunks(self, ArrowSchema *schema, ArrowArray *chunks, Py_ssize_t chunk_count) except -1:
        cdef Py_ssize_t i, at = 0, total = 0
        if self.role == _BODIES:
            self._check_body_layout(schema.format if schema.dictionary is NULL else schema.dictionary.format)
        for i in range(chunk_count):
            total += chunks[i].length
        if chunk_count == 1 and schema.dictionary is NULL and (chunks.null_count == 0 or chunks.n_buffers == 0 or
                                                                       chunks.buffers[0] is NULL):
            if self._arrow_direct(schema, chunks):
                return 0
        self._allocate(total)
        for i in range(chunk_count):
            self._arrow_slices(schema, &chunks[i], self.slices + at)
            self._arrow_nulls(&chunks[i], at)
            at += chunks[i].length
        return 0

    cdef bint _arrow_direct(self, ArrowSchema *schema, ArrowArray *array) except -1:
        """One array without nulls whose layout the engine reads itself. False: it has another layout."""
        cdef bytes layout = schema.format
        self.count = array.length
        if array.length == 0:
            self.column.kind = CMQ_COLUMN_SLICES
            return layout in (b"z", b"u", b"Z", b"U") or layout.startswith(b"w:")
        if layout in (b"z", b"u"):
            self.column.kind = CMQ_COLUMN_OFFSETS32
            self.column.offsets32 = <const int32_t *>array.buffers[1] + array.offset
            self.column.data = <const uint8_t *>array.buffers[2]
            self._check_rising32(self.column.offsets32, array.length)
        elif layout in (b"Z", b"U"):
            self.column.kind = CMQ_COLUMN_OFFSETS64
            self.column.offsets64 = <const int64_t *>array.buffers[1] + array.offset
            self.column.data = <const uint8_t *>array.buffers[2]
            self._check_rising64(self.column.offsets64, array.length)
        elif layout.startswith(b"w:"):
            self.column.kind = CMQ_COLUMN_FIXED
            self._set_width(int(layout[2:]))
            self.column.stride = self.column.width
            self.column.data = <const uint8_t *>array.buffers[1] + array.offset * self.column.stride
        else:
            self.count = -1
            return False
        return True

    cdef int _check_rising32(self, const int32_t *offsets, int64_t count) except -1:
        cdef int64_t i
        cdef bint rising = offsets[0] >= 0
        with nogil:
            for i in range(count):
                rising &= offsets[i] <= offsets[i + 1]
        if not rising:
            raise _errors.InvalidArgument(f"{self.name}: the offsets of the Arrow array do not rise")
        return 0

    cdef int _check_rising64(self, const int64_t *offsets, int64_t count) except -1:
        cdef int64_t i
        cdef bint rising = offsets[0] >= 0
        with nogil:
            for i in range(count):
                rising &= offsets[i] <= offsets[i + 1]
        if not rising:
            raise _errors.InvalidArgument(f"{self.name}: the offsets of the Arrow array do not rise")
        return 0

    cdef int _arrow_slices(self, ArrowSchema *schema, ArrowArray *array, cmq_slice *into) except -1:
        """A slice per element, also for nulls."""
        cdef bytes layout = schema.format
        cdef int64_t i
        cdef int64_t width
        cdef const int32_t *offsets32
        cdef const int64_t *offsets64
        cdef const uint8_t *data
        if array.length == 0:
            return 0
        if schema.dictionary is not NULL:
            self._arrow_dictionary(schema, array, into)
        elif layout in (b"z", b"u"):
            offsets32 = <const int32_t *>array.buffers[1] + array.offset
            data = <const uint8_t *>array.buffers[2]
            self._check_rising32(offsets32, array.length)
            for i in range(array.length):
                into[i].data = data + offsets32[i]
                into[i].bytes = <size_t>(offsets32[i + 1] - offsets32[i])
        elif layout in (b"Z", b"U"):
            offsets64 = <const int64_t *>array.buffers[1] + array.offset
            data = <const uint8_t *>array.buffers[2]
            self._check_rising64(offsets64, array.length)
            for i in range(array.length):
                into[i].data = data + offsets64[i]
                into[i].bytes = <size_t>(offsets64[i + 1] - offsets64[i])
        elif layout.startswith(b"w:"):
            width = int(layout[2:])
            data = <const uint8_t *>array.buffers[1] + array.offset * width
            for i in range(array.length):
                into[i].data = data + i * width
                into[i].bytes = <size_t>width
        elif layout in (b"vz", b"vu"):
            self._arrow_views(array, into)
        else:
            raise self._wrong_arrow(layout)
        return 0

    cdef int _arrow_views(self, ArrowArray *array, cmq_slice *into) except -1:
        """binary_view: 16 bytes each: length, then the bytes themselves (up to 12) or prefix, buffer and offset."""
        cdef const uint8_t *view = <const uint8_t *>array.buffers[1] + array.offset * 16
        cdef int64_t i, buffers = array.n_buffers - 3
        cdef const int64_t *sizes = <const int64_t *>array.buffers[array.n_buffers - 1]
        cdef int32_t[4] words
        for i in range(array.length):
            memcpy(words, view, 16)
            into[i].bytes = <size_t>words[0]
            if words[0] < 0:
                raise _errors.InvalidArgument(f"{self.name}[{i}]: the Arrow view has the length {words[0]}")
            elif words[0] <= 12:
                into[i].data = view + 4
            elif words[2] < 0 or words[2] >= buffers:
                raise _errors.InvalidArgument(f"{self.name}[{i}]: the Arrow view names the buffer {words[2]} of "
                                              f"{buffers}")
            elif words[3] < 0 or <int64_t>words[3] + words[0] > sizes[words[2]]:
                raise _errors.InvalidArgument(f"{self.name}[{i}]: the Arrow view ends behind its buffer")
            else:
                into[i].data = <const uint8_t *>array.buffers[2 + words[2]] + words[3]
            view += 16
        return 0

    cdef int _arrow_dictionary(self, ArrowSchema *schema, ArrowArray *array, cmq_slice *into) except -1:
        cdef int64_t i, index, values = array.dictionary.length
        cdef char width = schema.format[0]
        cdef const void *indices = array.buffers[1]
        cdef cmq_slice *dictionary = <cmq_slice *>malloc(<size_t>(values if values else 1) * sizeof(cmq_slice))
        if dictionary is NULL:
            raise MemoryError
        try:
            self._arrow_slices(schema.dictionary, array.dictionary, dictionary)
            for i in range(values):
                if _is_null(array.dictionary, i):
                    dictionary[i] = _NO_BYTES
            for i in range(array.length):
                if _is_null(array, i):
                    into[i] = _NO_BYTES
                    continue
                index = _arrow_index(indices, width, array.offset + i)
                if index < 0 or index >= values:
                    raise _errors.InvalidArgument(f"{self.name}[{i}]: the Arrow dictionary has {values} values and no "
                                                  f"{index}")
                into[i] = dictionary[index]
        finally:
            free(dictionary)
        return 0

    cdef int _arrow_nulls(self, ArrowArray *array, Py_ssize_t at) except -1:
        """Empty the slices of null elements; bodies must not be null."""
        cdef int64_t i
        if array.null_count == 0 or array.n_buffers == 0 or array.buffers[0] is NULL:
            return 0
        for i in range(array.length):
            if _is_null(array, i):
                if self.role == _BODIES:
                    raise _errors.InvalidArgument(f"{self.name}[{at + i}] is null; a message needs a body, which may "
                                                  f"be empty")
                self.slices[at + i] = _NO_BYTES
        return 0


cdef object _validated(object values, str name, _ColumnRole role):
    """Let an array of pyarrow's check that it stays within its buffers; return it, texts as bytes: nobody needs them to
    be UTF-8 here.
    """
    if (type(values).__module__ or "").partition(".")[0] != "pyarrow" or not hasattr(values, "validate"):
        return values
    binary = None if role == _BODIES else _BINARY_OF.get(str(getattr(values, "type", "")))
    try:
        if binary is not None:
            values = values.cast(binary)
        values.validate(full=True)
    except ValueError as error:
        raise _errors.InvalidArgument(f"{name}: the Arrow array is damaged: {error}") from error
    return values


cdef dict _BINARY_OF = {"string": "binary", "large_string": "large_binary", "string_view": "binary_view"}


cdef inline bint _is_null(const ArrowArray *array, int64_t at) noexcept nogil:
    cdef const uint8_t *bits = <const uint8_t *>array.buffers[0]
    at += array.offset
    return array.null_count != 0 and bits is not NULL and not (bits[at >> 3] >> (at & 7)) & 1


cdef int64_t _arrow_index(const void *indices, char width, int64_t at) noexcept nogil:
    """Element `at` of an Arrow integer array of format `width`; -1 for another format."""
    if width == b'c': return (<const signed char *>indices)[at]
    if width == b'C': return (<const uint8_t *>indices)[at]
    if width == b's': return (<const short *>indices)[at]
    if width == b'S': return (<const unsigned short *>indices)[at]
    if width == b'i': return (<const int32_t *>indices)[at]
    if width == b'I': return (<const uint32_t *>indices)[at]
    if width == b'l' or width == b'L': return (<const int64_t *>indices)[at]
    return -1


cdef str _TAKEN = "one text for all messages, or a list or an array with an element per message"


cdef _Column _column_of(object values, str name, _ColumnRole role):
    """The column for an argument; see the head of this file."""
    cdef _Column self = _Column.__new__(_Column)
    self.role = role
    self.name = name
    if isinstance(values, (str, bytes, bytearray)):
        if role == _BODIES:
            raise _errors.WrongType(f"{name} is one {type(values).__name__}; give a list or an array of bodies, or "
                                    f"call append")
        if isinstance(values, bytearray):
            raise _errors.WrongType(f"{name} must be str, bytes, a list or an array, not bytearray")
        self.kept = values
        self.column.kind = CMQ_COLUMN_ONE
        self.column.one = _slice_of_value(values, name)
    elif values is None:
        if role == _BODIES:
            raise _errors.WrongType(f"{name} must be a list or an array of bodies, not None")
    elif type(values) is list:
        self._from_list(<list>values)
    elif isinstance(values, (list, tuple)):
        self._from_tuple(tuple(values))
    elif hasattr(values, "__arrow_c_array__"):
        self._from_arrow_array(values)
    elif hasattr(values, "__arrow_c_stream__"):
        self._from_arrow_stream(values)
    elif getattr(getattr(values, "dtype", None), "kind", None) in ("U", "O"):
        self._from_tuple(tuple(values.tolist()))
    elif PyObject_CheckBuffer(values):
        self._from_buffer(values)
    elif hasattr(values, "__iter__") and not hasattr(values, "keys"):
        self._from_tuple(tuple(values))
    else:
        raise _errors.WrongType(f"{name} must be {'a list or an array of bodies' if role == _BODIES else _TAKEN}, not "
                                f"{type(values).__name__}")
    return self._checked_tags() if role == _TAGS else self


@cython.final
cdef class Rows:
    """Columns as Python lists, for hand-off: ``bodies`` and ``properties`` as bytes, ``tags`` and ``keys`` as str; None
    where not given.
    """
    cdef readonly list bodies
    cdef readonly list tags
    cdef readonly list keys
    cdef readonly list properties


def column_values(bodies, tags, keys, properties):
    """Return the columns of an append as :class:`Rows`."""
    cdef _Column column = _column_of(bodies, "bodies", _BODIES)
    cdef Rows rows = Rows.__new__(Rows)
    rows.bodies = column._values(column.count)
    rows.tags = _optional_values(tags, "tags", _TAGS, column.count)
    rows.keys = _optional_values(keys, "keys", _KEYS, column.count)
    rows.properties = _optional_values(properties, "properties", _TEXTS, column.count)
    if rows.tags is not None:
        rows.tags = [tag.decode() or None for tag in rows.tags]
    if rows.keys is not None:
        rows.keys = [key.decode() or None for key in rows.keys]
    return rows


cdef list _optional_values(object values, str name, _ColumnRole role, Py_ssize_t count):
    if values is None:
        return None
    cdef _Column column = _matching(_column_of(values, name, role), count)
    return column._values(count)


# ---- numbers ---------------------------------------------------------------------------------------------------------

@cython.final
@cython.no_gc
cdef class _Numbers:
    """Integers per message as int64: from a numpy array, array.array or any iterable of ints."""
    cdef int64_t *values
    cdef Py_ssize_t count

    def __dealloc__(self):
        free(self.values)

    cdef int _allocate(self, Py_ssize_t count) except -1:
        self.values = <int64_t *>malloc(<size_t>(count if count else 1) * sizeof(int64_t))
        if self.values is NULL:
            raise MemoryError
        self.count = count
        return 0

    cdef bint _from_buffer(self, object source, str name) except -1:
        """False when it is not a one-dimensional array of native integers."""
        cdef Py_buffer buffer
        cdef Py_ssize_t i
        cdef char width
        cdef const char *at
        try:
            PyObject_GetBuffer(source, &buffer, PyBUF_RECORDS_RO)
        except (BufferError, ValueError):
            return False  # numpy gives no buffer of times, for one
        try:
            item = (<bytes>buffer.format if buffer.format is not NULL else b"B").lstrip(b"@=<|")
            if buffer.ndim != 1 or item not in (b"b", b"B", b"h", b"H", b"i", b"I", b"l", b"L", b"q", b"Q"):
                return False
            self._allocate(buffer.shape[0])
            width = ord(_NUMBER_FORMATS[item, buffer.itemsize])
            for i in range(self.count):
                at = <const char *>buffer.buf + i * buffer.strides[0]
                self.values[i] = _arrow_index(at, width, 0)
                if self.values[i] < 0 and width == b"L":
                    raise _errors.InvalidArgument(f"{name}[{i}] is {<uint64_t>self.values[i]:,}: too large")
        finally:
            PyBuffer_Release(&buffer)
        return True


cdef dict _NUMBER_FORMATS = {
    (b"b", 1): b"c", (b"B", 1): b"C", (b"h", 2): b"s", (b"H", 2): b"S", (b"i", 4): b"i", (b"I", 4): b"I",
    (b"l", 4): b"i", (b"L", 4): b"I", (b"l", 8): b"l", (b"L", 8): b"L", (b"q", 8): b"l", (b"Q", 8): b"L",
}


cdef _Numbers _numbers_of(object source, str name, Py_ssize_t count):
    cdef _Numbers self = _Numbers.__new__(_Numbers)
    cdef Py_ssize_t i
    if not (PyObject_CheckBuffer(source) and not isinstance(source, (bytes, bytearray))
            and self._from_buffer(source, name)):
        if hasattr(source, "to_pylist"):
            source = source.to_pylist()
        if isinstance(source, str) or not hasattr(source, "__iter__"):
            raise _errors.WrongType(f"{name} must be an int or a list of ints, not {type(source).__name__} "
                                    f"({source!r:.60})")
        items = tuple(source)
        free(self.values)
        self.values = NULL
        self._allocate(len(items))
        for i in range(self.count):
            try:
                self.values[i] = _operator.index(items[i])
            except TypeError:
                raise _errors.WrongType(f"{name}[{i}] must be an int, not {type(items[i]).__name__}") from None
            except OverflowError:
                raise _errors.InvalidArgument(f"{name}[{i}] is {items[i]:,}: too large") from None
    if self.count != count:
        raise _errors.InvalidArgument(f"{name} and bodies must be of one length, not {self.count:,} and {count:,}")
    return self
