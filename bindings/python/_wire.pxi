# Remoting commands: the C codec. cometmq.remoting.command is what people use.

cdef enum:
    _SCRATCH_BYTES = 4096


cdef object _text_or_none(cmq_slice slice):
    return None if slice.data is NULL else _text(slice)


cdef tuple _command_tuple(const cmq_frame *frame, const cmq_command *command):
    cdef dict fields = {}
    cdef uint32_t i
    for i in range(command.field_count):
        # An empty value in the binary format is null, and means the same as an absent one.
        if command.fields[i].value.data is not NULL:
            fields[_text(command.fields[i].name)] = _text(command.fields[i].value)
    return (command.code, command.language, command.version, command.opaque, command.flag,
            _text_or_none(command.remark), fields,
            PyBytes_FromStringAndSize(<const char *>frame.body.data, <Py_ssize_t>frame.body.bytes), <int>command.format)


cdef tuple _decode_frame(cmq_slice bytes_of_frame):
    cdef cmq_frame frame
    cdef cmq_command command
    cdef uint8_t near[_SCRATCH_BYTES]
    cdef uint8_t *scratch = near
    cdef size_t needed = 0
    cdef cmq_status status = cmq_frame_next(bytes_of_frame, CMQ_FRAME_BYTES_MAX, &frame, &needed)
    if status == CMQ_AGAIN:
        raise _errors.CorruptRecord(f"{_counted(bytes_of_frame.bytes, 'byte')} of a frame that has at least {needed:,}")
    _check(status)
    if frame.bytes != bytes_of_frame.bytes:
        raise _errors.CorruptRecord(f"{_counted(bytes_of_frame.bytes - frame.bytes, 'byte')} behind the frame",
                                    offset=frame.bytes)
    if frame.header.bytes > _SCRATCH_BYTES:
        scratch = <uint8_t *>malloc(frame.header.bytes)
        if scratch is NULL:
            raise MemoryError
    try:
        _check(cmq_command_parse(&frame, scratch, frame.header.bytes, &command))
        return _command_tuple(&frame, &command)
    finally:
        if scratch != near:
            free(scratch)


def decode_command(const uint8_t[::1] frame not None):
    """Read one whole frame, length word included.

    Returns (code, language, version, opaque, flag, remark or None, fields, body, header format); the numbers of
    languages and formats are those of the wire. Fields that are null are left out. CorruptRecord for bytes that are not
    exactly one frame; LimitReached for too many fields.
    """
    cdef cmq_slice slice
    slice.bytes = <size_t>frame.shape[0]
    slice.data = &frame[0] if slice.bytes else NULL
    return _decode_frame(slice)


cdef size_t _write_command(cmq_command_writer *writer, uint8_t *into, size_t capacity, tuple head, cmq_slice remark,
                           list fields, size_t body_bytes) except? 0:
    """Prefix and header. Bytes beyond the capacity are not written."""
    cdef str name, value
    cmq_command_begin(writer, into, capacity, <cmq_header_format><int>head[5], head[0], head[3], head[4], remark)
    writer.language = head[1]
    writer.version = head[2]
    for name, value in fields:
        cmq_command_add_text(writer, _slice_of_text(name), _slice_of_text(value))
    return cmq_command_end(writer, body_bytes)


def encode_command(int32_t code, int32_t language, int32_t version, int32_t opaque, int32_t flag, str remark,
                   fields not None, body not None, int format):
    """Return a whole frame, length word included.

    ``fields``: a mapping of text to text. In the binary format codes and versions keep their lower 16 bits, as Java's
    do. InvalidArgument for what no frame can hold.
    """
    cdef uint8_t near[_SCRATCH_BYTES]
    cdef cmq_command_writer writer
    cdef cmq_slice note = _NO_BYTES
    cdef const uint8_t[::1] body_view = body
    cdef size_t body_bytes = <size_t>body_view.shape[0]
    cdef list pairs = list(fields.items())
    cdef tuple head = (code, language, version, opaque, flag, format)
    cdef size_t header_bytes
    cdef bytes frame
    cdef uint8_t *into
    if format not in (<int>CMQ_HEADER_JSON, <int>CMQ_HEADER_ROCKETMQ):
        raise _errors.InvalidArgument(f"the header format {format} is neither 0 (JSON) nor 1 (ROCKETMQ)")
    if remark is not None:
        note = _slice_of_text(remark)
    header_bytes = _write_command(&writer, near, _SCRATCH_BYTES, head, note, pairs, body_bytes)
    if header_bytes == 0:
        raise _errors.InvalidArgument(f"code {code}: no frame can hold this header and a body of "
                                      f"{_counted(body_bytes, 'byte')}")
    frame = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(header_bytes + body_bytes))
    into = <uint8_t *>PyBytes_AS_STRING(<PyObject *>frame)
    if header_bytes <= _SCRATCH_BYTES:
        memcpy(into, near, header_bytes)
    else:
        _write_command(&writer, into, header_bytes, head, note, pairs, body_bytes)
    if body_bytes:
        memcpy(into + header_bytes, &body_view[0], body_bytes)
    return frame
