# Strings, hosts, properties and message ids between Python and C.

cdef cmq_slice _NO_BYTES
_NO_BYTES.data = NULL
_NO_BYTES.bytes = 0


cdef int _refuse_text(str text) except -1:
    """Raise the error of a text without UTF-8."""
    PyErr_Clear()
    if text is None:
        raise TypeError("a text is a str, not None")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _errors.InvalidArgument(f"{text!r:.80} has surrogates, which UTF-8 cannot hold") from error
    raise MemoryError


cdef cmq_slice _slice_of_text(str text) except *:
    """The text's UTF-8, which lives as long as the text."""
    cdef Py_ssize_t size = 0
    cdef cmq_slice slice
    slice.data = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &size)
    if slice.data is NULL:
        _refuse_text(text)
    slice.bytes = <size_t>size
    return slice


cdef cmq_slice _slice_of_bytes(bytes data) noexcept:
    cdef cmq_slice slice
    slice.data = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>data)
    slice.bytes = <size_t>PyBytes_GET_SIZE(<PyObject *>data)
    return slice


cdef int _get_bytes(object item, Py_buffer *buffer, str name, Py_ssize_t at=-1) except -1:
    """Get the bytes of an object that has the buffer protocol; ``name``, or ``name[at]``, stands in the error."""
    try:
        PyObject_GetBuffer(item, buffer, PyBUF_SIMPLE)
    except BufferError as error:
        if at >= 0:
            name = f"{name}[{at}]"
        raise _errors.InvalidArgument(f"{name} cannot be read as bytes ({error}): copy it, bytes(body)") from None
    return 0


cdef cmq_slice _slice_of_value(object value, str what) except *:
    """The bytes of a str (its UTF-8) or bytes, borrowed from it; None is empty."""
    if value is None:
        return _NO_BYTES
    if type(value) is str:
        return _slice_of_text(<str>value)
    if type(value) is bytes:
        return _slice_of_bytes(<bytes>value)
    if isinstance(value, str):
        return _slice_of_text(value)
    raise _errors.WrongType(f"{what} must be str or bytes, not {type(value).__name__} ({value!r:.60})")


cdef inline int _check_tag(cmq_slice tag, str name, Py_ssize_t at=-1) except -1:
    """Refuse a tag that no subscription could ever name: "||" divides tags there, and blanks around them are taken off.
    """
    return 0 if _is_plain_tag(tag) else _look_at_tag(tag, _place(name, at))


cdef inline bint _is_plain_tag(cmq_slice tag) noexcept:
    """Whether a tag is one that needs no second look."""
    return tag.bytes == 0 or (tag.data[0] > 0x20 and tag.data[tag.bytes - 1] > 0x20
                              and memchr(tag.data, b'|', tag.bytes) is NULL)


def check_tag(str tag not None):
    """Return where a subscription can name this tag.

    Raises:
        InvalidArgument: none could: it holds "||", or blanks at an end.
    """
    _check_tag(_slice_of_text(tag), "tags")


cdef int _look_at_tag(cmq_slice tag, str place) except -1:
    cdef str text = _text(tag)
    if "||" in text:
        raise _errors.InvalidArgument(f"{place} is {text!r}: a message has one tag, and || divides tags where they "
                                      f"are asked for, so that no "
                                      "reader could ask for this one. Give one tag; keys and properties may be several")
    if tag.data[0] <= 0x20 or tag.data[tag.bytes - 1] <= 0x20:
        raise _errors.InvalidArgument(f"{place} is {text!r}: blanks around a tag are taken off where it is asked for, "
                                      f"so that no reader could "
                                      "ask for this one. Give it without them")
    return 0


cdef str _text(cmq_slice slice):
    """The slice as text. Bytes that are not UTF-8 become U+FFFD, as in Java."""
    return (<const char *>slice.data)[:slice.bytes].decode("utf-8", "replace") if slice.bytes else ""


cdef object _joined_keys(object keys, str name, Py_ssize_t at=-1):
    """Keys as one str or bytes: a message's keys are divided by single spaces. None, str and bytes pass."""
    if keys is None or isinstance(keys, (str, bytes)):
        return keys
    cdef list pieces = []
    if not hasattr(keys, "__iter__"):
        raise _errors.WrongType(f"{_place(name, at)} must be a str, bytes or a list of keys, not {type(keys).__name__} "
                                f"({keys!r:.60})")
    for key in keys:
        if isinstance(key, bytes):
            key = (<bytes>key).decode()
        elif not isinstance(key, str):
            raise _errors.WrongType(f"{_place(name, at)} contains {key!r:.60}, of type {type(key).__name__}; a key must"
                                    f" be str or bytes")
        if not key or " " in key:
            raise _errors.InvalidArgument(f"{_place(name, at)}: the key {key!r} is empty or holds a space, which "
                                          f"divides keys")
        pieces.append(key)
    return " ".join(pieces)


cdef str _place(str name, Py_ssize_t at):
    """An argument's name, or its element's."""
    return name if at < 0 else f"{name}[{at}]"


def join_keys(keys):
    """Return keys (a text, or several) as they are stored: divided by single spaces."""
    return _joined_keys(keys, "keys")


# ---- hosts -----------------------------------------------------------------------------------------------------------

cdef int _set_host(cmq_record_host *host, bytes address, int port) except -1:
    if len(address) not in (4, 16):
        raise _errors.InvalidArgument(f"an address has 4 or 16 bytes, not {len(address)}")
    memset(host, 0, sizeof(host[0]))
    memcpy(host.address, <const char *>address, <size_t>len(address))
    host.ipv6 = len(address) == 16
    host.port = port
    return 0


cdef tuple _host_pair(const cmq_record_host *host):
    if not host.ipv6:
        return f"{host.address[0]}.{host.address[1]}.{host.address[2]}.{host.address[3]}", host.port
    from ipaddress import IPv6Address
    return str(IPv6Address((<const char *>host.address)[:16])), host.port


# ---- properties ------------------------------------------------------------------------------------------------------

cdef frozenset _OWN_ARGUMENTS = frozenset(("TAGS", "KEYS"))


def encode_properties(properties):
    """Return a mapping of names to values (str or bytes) in the stored form; ``None`` is empty."""
    return _encode_properties(properties)


cdef bytes _encode_properties(object properties, bint with_own=False):
    cdef uint8_t buffer[CMQ_PROPERTY_BYTES_MAX]
    cdef size_t used = 0
    if properties is None:
        return b""
    if not hasattr(properties, "items"):
        raise _errors.WrongType(f"properties must be a mapping of names to values, not {type(properties).__name__}")
    for name, value in properties.items():
        if name in _OWN_ARGUMENTS and not with_own:
            raise _errors.InvalidArgument(f"give {name} as the argument {name.lower()}, not among the properties")
        if not isinstance(value, (str, bytes)):
            raise _errors.WrongType(f"the property {name!r} must be str or bytes, not {type(value).__name__}")
        _check(cmq_property_append(buffer, sizeof(buffer), &used, _slice_of_value(name, "a property's name"),
                                   _slice_of_value(value, "")))
    return PyBytes_FromStringAndSize(<const char *>buffer, <Py_ssize_t>used)


cdef dict _decode_properties(cmq_slice properties):
    cdef cmq_slice name, value
    cdef dict pairs = {}
    while cmq_property_next(&properties, &name, &value):
        pairs[_text(name)] = _text(value)
    return pairs


def decode_properties(const uint8_t[::1] encoded not None):
    """Return a stored property string as a dict, as upstream's decoder reads it."""
    cdef cmq_slice slice
    slice.bytes = <size_t>encoded.shape[0]
    slice.data = &encoded[0] if slice.bytes else NULL
    return _decode_properties(slice)


# ---- message ids -----------------------------------------------------------------------------------------------------

cdef str _message_id(const cmq_record_host *store_host, int64_t physical_offset):
    cdef char digits[CMQ_MESSAGE_ID_BYTES_MAX]
    cdef size_t size = cmq_message_id_format(store_host, physical_offset, digits)
    return digits[:size].decode("ascii")


def parse_message_id(str message_id not None):
    """Return ``((host, port), physical_offset)`` of an offset message id."""
    cdef cmq_record_host host
    cdef int64_t physical_offset = 0
    _check(cmq_message_id_parse(_slice_of_text(message_id), &host, &physical_offset))
    return _host_pair(&host), physical_offset


# ---- hashes and checksums --------------------------------------------------------------------------------------------

def java_hash(str text not None):
    """Return Java's ``String.hashCode`` of the text, as the signed 32-bit number that consume queues hold for a tag."""
    cdef bytes utf8 = text.encode("utf-8")
    cdef const uint8_t *data = utf8
    return <int32_t>cmq_jhash_extend(0, data, <size_t>len(utf8))


def crc31(const uint8_t[::1] data not None):
    """Return the CRC that a record holds of its body: zlib's CRC-32 without the top bit. Releases the GIL."""
    cdef size_t count = <size_t>data.shape[0]
    cdef const uint8_t *start = &data[0] if count else NULL
    cdef uint32_t value
    with nogil:
        value = cmq_crc31(start, count)
    return value


def crc_variant():
    """Return the name of the CRC implementation chosen for this machine, for example ``pclmul``."""
    return cmq_crc32_variant_name().decode()
