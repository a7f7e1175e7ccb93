# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The compiled twin: the same steps as the Python beside it, for a few inner loops.

penstock/speedups.py chooses; nothing else imports this. Where a step is not one of the usual, the
Python takes it.
"""

from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pythread cimport PyThread_get_thread_ident

REVISION = 2  # as in penstock/speedups.py

cdef unsigned int NULL_LENGTH = 0xFFFFFFFF
cdef long long RECORD_OVERHEAD_BYTES = 64


cdef class Cells:
    """As penstock.scaling.cells.Cells."""

    cdef public long long value
    cdef public long long _base
    cdef public long long _limit
    cdef public long long open_to
    cdef public unsigned long thread
    cdef public tuple parked
    cdef public list _slots

    def publish(self, item):
        cdef long long position = self.value
        if position < self._limit:
            self._slots[position - self._base] = item
            self.value = position + 1
            if self.parked:
                self.wake()
        else:
            self._publish_late(item)

    def try_publish(self, item):
        cdef long long position = self.value
        if position < self._limit:
            self._slots[position - self._base] = item
            self.value = position + 1
            if self.parked:
                self.wake()
            return True
        return self._try_late(item)


cdef object UNSAID = object()


cdef class Gate:
    """As the function that penstock.scaling.short_way.make_publish_nowait makes.

    The options are named, as a dictionary of them would be made for each call. The ring of the last class is at
    hand; when it is closed, or the class is another, the Python is asked, and knows.
    """

    cdef dict _rings
    cdef object _put, _go_long, _kind
    cdef Cells _ring

    def __init__(self, dict rings, put, go_long):
        self._rings = rings
        self._put = put
        self._go_long = go_long

    def publish_nowait(
        self, event, *, session=UNSAID, priority=UNSAID, headers=UNSAID, correlation_id=UNSAID
    ):
        """Publish an event, without waiting."""
        cdef Cells ring = self._ring
        cdef long long position
        cdef bint plain = (
            session is UNSAID
            and priority is UNSAID
            and headers is UNSAID
            and correlation_id is UNSAID
        )
        if plain and type(event) is self._kind:
            position = ring.value
            if position < ring.open_to and ring.thread == PyThread_get_thread_ident():
                ring._slots[position - ring._base] = event
                ring.value = position + 1
                return
        if plain and self._put(event):
            self._remember(type(event))
            return
        options = dict(
            session=session, priority=priority, headers=headers, correlation_id=correlation_id
        )
        self._go_long(event, {name: said for name, said in options.items() if said is not UNSAID})

    cdef _remember(self, kind):
        self._ring = self._rings.get(kind)
        self._kind = None if self._ring is None else kind


cdef class Counter:
    """A number that Python sets and that is read here without a look at a dictionary."""

    cdef public long long value


cdef class Calls:
    """Calls a function with one message after the other, as HotLane._handle_bare does."""

    cdef object _function, _left
    cdef Counter _changes
    cdef long long _version
    cdef readonly object message
    """The one that was taken last."""

    def __init__(self, function, left, Counter changes not None, long long version):
        self._function = function
        self._left = left
        self._changes = changes
        self._version = version

    def next(self):
        """Go on until a call returns something, and return that; None at the end of the turn."""
        cdef object function = self._function
        for message in self._left:
            self.message = message
            result = function(message)
            if result is not None:
                return result
            if self._changes.value != self._version:
                break
        return None


def fnv1a(bytes key not None):
    """As penstock.hashing.fnv1a."""
    cdef unsigned int value = 0x811C9DC5
    cdef const unsigned char *data = key
    cdef Py_ssize_t place
    for place in range(len(key)):
        value = (value ^ data[place]) * <unsigned int>0x01000193
    return value


cdef array UNSIGNED = array("I")


def plain_lengths(list items not None):
    """As penstock.log.columns.python_plain_lengths."""
    cdef Py_ssize_t place
    cdef Py_ssize_t count = -1
    cdef Py_ssize_t length
    cdef array lengths
    while count != len(items):  # to make an array may collect garbage, which may run anything
        count = len(items)
        lengths = clone(UNSIGNED, count, False)
    for place in range(count):
        item = items[place]
        if type(item) is not bytes:
            return None
        length = len(<bytes>item)
        if length >= NULL_LENGTH:
            return None
        lengths.data.as_uints[place] = length
    return lengths


def cut(bytes body not None, Py_ssize_t start, const unsigned int[:] lengths):
    """As penstock.log.columns._cut."""
    cdef const char *data = body
    cdef Py_ssize_t end = len(body)
    cdef Py_ssize_t place
    cdef unsigned int length
    cdef list pieces = []
    for place in range(lengths.shape[0]):
        length = lengths[place]
        if length == NULL_LENGTH:
            pieces.append(None)
            continue
        if length > end - start:
            raise ValueError("the lengths go beyond the body")
        pieces.append(PyBytes_FromStringAndSize(data + start, length))
        start += length
    return pieces


def records(kind, str topic, partition, long long offset, timestamp, list keys, list values not None, headers):
    """As penstock.log.columns.python_records; without ``keys``, no record has one."""
    cdef Py_ssize_t place
    cdef list found = []
    if keys is not None and len(keys) != len(values):
        raise ValueError("there are not as many keys as values")
    for place in range(len(values)):
        key = None if keys is None else keys[place]
        found.append(kind(topic, partition, offset + place, timestamp, key, values[place], headers))
    return found


cdef class TopicInlet:
    """As penstock.log.inlet.PythonTopicInlet."""

    cdef public object _items
    cdef public object _receipt
    cdef public long long _gathered_bytes
    cdef public long long _room
    cdef public long long _record_bytes_max
    cdef public bint _scheduled
    cdef public bint _lingering

    def add_nowait(self, value, key=None, headers=None, timestamp=None):
        """Add one record; the receipt of the commit that will hold it, or of the one after."""
        return self.add(value, key, headers, timestamp)

    cdef add(self, value, key, headers, timestamp):
        cdef long long size
        if type(value) is bytes and key is None and headers is None and timestamp is None:
            item = value
            size = len(<bytes>value)
        else:
            item, size = self._pack(value, key, headers, timestamp)
        if self._gathered_bytes + size > self._room or size > self._record_bytes_max:
            self._refuse(size)
        before = self._receipt
        self._items.append(item)
        self._gathered_bytes += size + RECORD_OVERHEAD_BYTES
        receipt = self._receipt
        if receipt is not before:
            self._join(before, receipt)
        if not self._scheduled or self._lingering:
            self._schedule()
        return receipt


cdef class QueueInlet:
    """As penstock.log.inlet.PythonQueueInlet."""

    cdef public dict _opened

    def publish_nowait(self, topic, value, key=None, headers=None, timestamp=None):
        """Hand a record over without waiting; from any thread."""
        cdef dict by_name = self._opened  # held, as a hash may run anything
        opened = by_name.get(topic)
        if opened is None:
            opened = self._open_here(topic)
        return (<TopicInlet?>opened.writer).add(value, key, headers, timestamp)
