# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The compiled twin: the same steps as the Python beside it, for a few inner loops. What is unusual, the Python takes.

penstock/speedups.py chooses; nothing else imports this."""

cimport cython
from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from inspect import isawaitable
from types import CoroutineType

from penstock.messages import DEFAULT_SESSION, NORMAL, UntrackedEnvelope

cdef extern from "Python.h":
    object PyContextVar_Set(object, object)
    object PyContext_CopyCurrent()
    object PyObject_Vectorcall(object callable, PyObject **arguments, size_t count, PyObject *names)
    int PyContextVar_Get(object, object, PyObject **) except -1
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    int PyIter_Send(object, object, PyObject **) except -1
    int PyObject_GC_IsTracked(object)

REVISION = 10  # as in penstock/speedups.py

cdef array UNSIGNED = array("I")
cdef object UNSAID = object()
cdef unsigned int NULL_LENGTH = 0xFFFFFFFF
cdef long long RECORD_OVERHEAD_BYTES = 64

cdef class Cells:  # as penstock.scaling.cells.Cells
    cdef public long long value, open_to, _base, _limit
    cdef public unsigned long thread
    cdef public tuple parked
    cdef public list _slots

    cdef bint _put(self, item) except -1:
        cdef long long position = self.value
        if position >= self._limit:
            return False
        self._slots[position - self._base] = item
        self.value = position + 1
        if self.parked:
            self.wake()
        return True

    def publish(self, item):
        if not self._put(item):
            self._publish_late(item)

    def try_publish(self, item):
        return True if self._put(item) else self._try_late(item)

cdef class Gate:  # as the function of penstock.scaling.short_way, with the ring of the last class at hand
    cdef dict _rings
    cdef object _put, _go_long, _kind
    cdef Cells _ring

    def __init__(self, dict rings, put, go_long):
        self._rings, self._put, self._go_long = rings, put, go_long

    def publish_nowait(self, event, *, session=UNSAID, priority=UNSAID, headers=UNSAID, correlation_id=UNSAID):
        """Publish an event, without waiting."""
        cdef Cells ring = self._ring
        cdef long long position
        cdef bint plain = session is priority is headers is correlation_id is UNSAID
        if plain and type(event) is self._kind:
            position = ring.value
            if position < ring.open_to and ring.thread == PyThread_get_thread_ident():
                ring._slots[position - ring._base] = event
                ring.value = position + 1
                return
        if plain and self._put(event):
            self._ring = self._rings.get(type(event))
            self._kind = None if self._ring is None else type(event)
            return
        given = dict(session=session, priority=priority, headers=headers, correlation_id=correlation_id)
        self._go_long(event, {name: said for name, said in given.items() if said is not UNSAID})

cdef class Counter:  # a number that Python sets and that is read here without a look at a dictionary
    cdef public long long value

def fnv1a(bytes key not None):  # as penstock.hashing.fnv1a
    cdef unsigned int value = 0x811C9DC5
    cdef unsigned char byte
    for byte in key:
        value = (value ^ byte) * <unsigned int>0x01000193
    return value

def plain_lengths(list items not None):  # as penstock.log.columns.python_plain_lengths
    cdef Py_ssize_t place, count = -1
    cdef array lengths
    while count != len(items):  # to make an array may collect garbage, which may run anything
        count = len(items)
        lengths = clone(UNSIGNED, count, False)
    for place in range(count):
        item = items[place]
        if type(item) is not bytes or len(<bytes>item) >= NULL_LENGTH:
            return None
        lengths.data.as_uints[place] = len(<bytes>item)
    return lengths

cdef object piece(const unsigned char[:] body, Py_ssize_t *start, unsigned int length):  # the next bytes of a body, or None
    cdef Py_ssize_t first = start[0]
    if length == NULL_LENGTH:
        return None
    if length > body.shape[0] - first:
        raise ValueError("the lengths go beyond the body")
    start[0] = first + length
    return PyBytes_FromStringAndSize(<const char *>&body[0] + first if length else NULL, length)

def cut(const unsigned char[:] body not None, Py_ssize_t start, const unsigned int[:] lengths not None):  # as penstock.log.columns.python_cut
    cdef Py_ssize_t place
    cdef list pieces = PyList_New(lengths.shape[0])
    for place in range(lengths.shape[0]):
        fill(pieces, place, piece(body, &start, lengths[place]))
    return pieces

cdef inline void fill(list items, Py_ssize_t place, object item):
    Py_INCREF(item)
    PyList_SET_ITEM(items, place, item)

def records(
    kind, str topic, partition, long long offset, timestamp, headers, const unsigned char[:] body not None,
    Py_ssize_t keys_at, const unsigned int[:] key_lengths, Py_ssize_t values_at, const unsigned int[:] value_lengths not None,
):  # as penstock.log.columns.python_records, where all columns but keys and values are plain
    cdef Py_ssize_t place
    cdef bint keyed = key_lengths is not None
    cdef list found = PyList_New(value_lengths.shape[0])
    cdef PyObject *fields[7]
    cdef object number, key, value
    if keyed and key_lengths.shape[0] != value_lengths.shape[0]:
        raise ValueError("there are not as many keys as values")
    fields[0], fields[1], fields[3] = <PyObject *>topic, <PyObject *>partition, <PyObject *>timestamp
    fields[6] = <PyObject *>headers
    for place in range(value_lengths.shape[0]):
        number = offset + place
        key = piece(body, &keys_at, key_lengths[place]) if keyed else None
        value = piece(body, &values_at, value_lengths[place])
        fields[2], fields[4], fields[5] = <PyObject *>number, <PyObject *>key, <PyObject *>value
        fill(found, place, PyObject_Vectorcall(kind, fields, 7, NULL))
    return found

cdef class AwaitedRow:  # what penstock.log.published.PythonAwaitedRow does for each record; there is the rest of it
    cdef public object row, durable, acknowledgement, error
    cdef public object _loop, _callback, _context, _failure
    cdef public bint _done, _asyncio_future_blocking

    def get_loop(self):
        return self._loop

    def done(self):
        return self._done

    def result(self):
        sound = self._done and self._failure is None and self.acknowledgement is not None
        return self.acknowledgement if sound else self._result()

    def add_done_callback(self, callback, *, context=None):
        if self._done or self._callback is not None or context is None:
            self._add_callback(callback, context)
        else:
            self._callback, self._context = callback, context

    def __await__(self):
        return self

    def __next__(self):
        if self._done:
            raise StopIteration(self.result())
        self._asyncio_future_blocking = True
        return self

def acknowledge(kind, rows, topic, placed):  # as penstock.log.published.python_acknowledge
    cdef long long offset
    new = tuple.__new__
    partition, places, offset, timestamp, durable = placed
    for place in places:
        row = rows[place]
        if row is not None:
            (<AwaitedRow?>row).acknowledgement = new(kind, (topic, partition, offset, timestamp, durable))
        offset += 1

def resume(rows):  # goes on with those who wait for the rows, one after the other; what one of them raises ends it
    cdef AwaitedRow row
    for one in rows:
        row = <AwaitedRow?>one
        row._done, row.row = True, None
        callback, context, row._callback, row._context = row._callback, row._context, None, None
        if callback is not None:
            context.run(callback, row)

cdef class TopicInlet:  # as penstock.log.inlet.PythonTopicInlet
    cdef public object _items, _receipt, _loop, _row_kind
    cdef public long long _gathered_bytes, _record_bytes_max, _room
    cdef public bint _lingering, _scheduled

    cdef put(self, item, long long size):
        if self._gathered_bytes + size > self._room or size > self._record_bytes_max:
            self._refuse(size)
        self._items.append(item)
        self._gathered_bytes += size + RECORD_OVERHEAD_BYTES

    cdef item_of(self, value, key, headers, timestamp, long long *size):
        if type(value) is bytes and key is None and headers is None and timestamp is None:
            size[0] = len(<bytes>value)
            return value
        item, size[0] = self.pack(value, key, headers, timestamp)
        return item

    cdef enter(self, value, key, headers, timestamp, durable, list futures):
        cdef long long size
        cdef AwaitedRow row = self._row_kind()
        row.row = self.item_of(value, key, headers, timestamp, &size)
        row.durable, row._loop = durable, self._loop
        self.put(row, size)
        if not self._scheduled or self._lingering:
            self._schedule()
        futures.append(row)
        return row

    cpdef add_nowait(self, value, key=None, headers=None, timestamp=None):  # the receipt of the commit of the record, or of the next
        cdef long long size
        item = self.item_of(value, key, headers, timestamp, &size)
        before = self._receipt
        self.put(item, size)
        receipt = self._receipt
        if receipt is not before:
            self._join(before, receipt)
        if not self._scheduled or self._lingering:
            self._schedule()
        return receipt

cdef class QueueInlet:  # as penstock.log.inlet.PythonQueueInlet
    cdef public dict _opened, _turn

    def _enter(self, topic, value, key, headers, timestamp, durable, seconds):  # None if its topic is not open, or its deadline new
        cdef dict by_name = self._opened, by_seconds = self._turn  # held, as a hash may run anything
        futures, opened = by_seconds.get(seconds), by_name.get(topic)
        if futures is None or opened is None:
            return None
        return (<TopicInlet?>opened.writer).enter(value, key, headers, timestamp, durable, futures)

    def publish_nowait(self, topic, value, key=None, headers=None, timestamp=None):
        """Hand a record over without waiting; from any thread."""
        cdef dict by_name = self._opened  # as above
        opened = by_name.get(topic)
        if opened is None:
            opened = self._open_here(topic)
        return (<TopicInlet?>opened.writer).add_nowait(value, key, headers, timestamp)

cdef class Counters:  # as penstock.bus.cells.PythonCounters
    cdef public long long published, processed, failed, filtered, unhandled, dropped, unsettled

@cython.no_gc
@cython.freelist(512)
cdef class Slip:  # stands for an event until somebody looks at its envelope; for what UntrackedEnvelope is for
    cdef readonly object message
    cdef readonly long long sequence
    cdef object _origin, _envelope
    cdef long long _time_ms
    cdef bint _settled

    def envelope(self):
        if self._envelope is None:
            self._envelope = UntrackedEnvelope(self.message, self.sequence, self._time_ms, self._origin)
            self._envelope.settled = self._settled
        return self._envelope

cdef class QueueCells:  # as penstock.bus.cells.PythonQueueCells
    cdef public long long bound, capacity, depth, held, peak_depth, _high, _low
    cdef public bint under_pressure
    cdef public object _normal, _append, _popleft

cdef class MeterCells:  # as penstock.bus.cells.PythonMeterCells
    cdef public long long skip, skipped

cdef class LaneCells:  # as penstock.bus.cells.PythonLaneCells
    cdef public long long pumps, suspended, version, handled, good
    cdef public bint short, running, held_back
    cdef public QueueCells queue
    cdef public IntakeCells intake
    cdef public MeterCells meter
    cdef public object on_empty, plain, taken, _ready, _room

    def handle_next(self, long long stop):  # as Lane._run_plain; of a handler that waits, what is left
        cdef QueueCells queue = self.queue
        cdef long long version = self.intake.changes.value
        cdef bint slip
        function, guard, self.taken = self.plain.function, self.plain.guard, None
        while (
            self.handled < stop and queue.depth == len(queue._normal) > 0 and self.running and not self._ready
            and self.intake.changes.value == version and (guard is None or guard.clear)
        ):
            taken = queue._popleft()
            slip = type(taken) is Slip
            if not slip and (taken.delivery is not None or taken.session is not DEFAULT_SESSION):
                queue._normal.appendleft(taken)
                return None
            queue.depth -= 1
            if queue.under_pressure and queue.depth <= queue._low:
                queue._press(started=False)
            self.handled += 1
            if self._room:
                self.make_room()
            self.taken = taken
            pending = self.intake.begin(function, taken, (<Slip>taken).message if slip else taken.message)
            if pending is not None:
                return pending
            self.taken = None
            self.good += 1
            self.intake.settle(taken)

cdef class BreakerCells:  # as penstock.resilience.cells.PythonBreakerCells
    cdef public long long _admitted, _succeeded, _look_at

    cdef tell(self, long long count, bint asked):  # those that were not asked for are no probes
        self._succeeded += count
        if self._succeeded >= self._look_at and (asked or self._look_at):
            self._note_success()

    def passed(self, long long count):
        self._admitted += count
        self.tell(count, False)

cdef class IntakeCells:  # as penstock.bus.cells.PythonIntakeCells
    cdef public bint real_time
    cdef public long long numbered
    cdef public unsigned long thread_here
    cdef public dict lanes, open_batches
    cdef public list filters, middleware, idle_waiters
    cdef public Counters counters
    cdef public Counter changes
    cdef public object current, dispatch, done, now_ms, origin, recorder, refusal, stamp, wait_for

    def next_number(self):
        self.numbered += 1
        return self.numbered

    cdef LaneCells lane_for(self, message):  # of one that nobody needs to know of; None when somebody may
        cdef PyObject *cause = NULL
        cdef LaneCells lane = self.lanes.get(type(message))
        if (
            lane is None or not lane.short or self.refusal is not None or self.stamp is not None or self.filters
            or self.recorder is not None or self.thread_here != PyThread_get_thread_ident()
            or PyObject_GC_IsTracked(message)
        ):
            return None
        PyContextVar_Get(self.current, None, &cause)
        Py_DECREF(<object>cause)
        return lane if cause is <PyObject *>None else None

    cdef Slip accept(self, message):
        cdef timespec now
        cdef Slip slip = Slip.__new__(Slip)
        self.numbered += 1
        slip.message, slip.sequence, slip._origin = message, self.numbered, self.origin
        told = self.real_time and clock_gettime(CLOCK_REALTIME, &now) == 0
        slip._time_ms = now.tv_sec * <long long>1000 + now.tv_nsec // 1000000 if told else self.now_ms()
        self.counters.published += 1
        self.counters.unsettled += 1
        return slip

    cdef bint put(self, message) except -1:
        cdef LaneCells lane = self.lane_for(message)
        cdef QueueCells queue
        if lane is None or lane.queue.depth + lane.queue.held >= lane.queue.bound:
            return False
        queue = lane.queue
        queue._append(self.accept(message))
        queue.depth += 1
        queue.peak_depth = max(queue.depth, queue.peak_depth)
        if queue.depth >= queue._high and not queue.under_pressure:
            queue._press(started=True)
        if lane.pumps == lane.suspended:
            lane.wake()
        return True

    cdef handle(self, message):  # as begin_in_place: the outcome, or what is left to do; None when all is
        cdef LaneCells lane = self.lane_for(message)
        if lane is not None and lane.version != self.changes.value:
            lane.look_up()
        if (
            lane is None or lane.plain is None or not lane.running or lane.held_back or lane.pumps or lane._ready
            or lane.queue.depth or self.open_batches or self.middleware
        ):
            return None
        handler, guard = lane.plain, lane.plain.guard
        if guard is not None and not guard.clear:
            return None
        watch = self.watch(lane) if self.dispatch.meters is not None else None
        slip = self.accept(message)
        breaker = None if guard is None else guard.breaker
        if breaker is not None:
            (<BreakerCells?>breaker)._admitted += 1
        lane.pumps += 1
        try:
            pending = self.begin(handler.function, slip, message)
        except BaseException as error:
            return lane.go_on_in_place(handler, slip.envelope(), None, error, watch)
        if pending is not None:
            return lane.go_on_in_place(handler, slip.envelope(), pending, None, watch)
        handler.handled += 1
        if breaker is not None:
            (<BreakerCells>breaker).tell(1, True)
        self.settle(slip)
        if watch is not None:
            watch.stop()
        lane.pumps -= 1
        if lane.queue.depth or lane._ready or lane._room or lane.on_empty is not None:
            lane.left()
        if self.idle_waiters:
            self.dispatch.wake_idle()
        return self.done

    cdef watch(self, LaneCells lane):  # as Lane.stopwatch
        if lane.meter is None or lane.meter.skipped >= lane.meter.skip:
            return lane.stopwatch()
        lane.meter.skipped += 1

    cdef begin(self, function, taken, message):  # as penstock.bus.drive.begin_event; of a handler that waits, its rest
        context = PyContext_CopyCurrent()
        PyContext_Enter(context)
        try:
            PyContextVar_Set(self.current, taken)
            return first_step(function(message), self.wait_for, context)
        finally:
            PyContext_Exit(context)

    cdef settle(self, taken):  # as Dispatch.release
        if type(taken) is not Slip or (<Slip>taken)._envelope is not None:
            self.dispatch.release(taken.envelope() if type(taken) is Slip else taken)
        else:
            (<Slip>taken)._settled = True
            self.counters.processed += 1
            self.counters.unsettled -= 1

cdef first_step(result, wait_for, context):  # as penstock.bus.drive.rest_of: of what a handler returned and that waits, the rest
    cdef PyObject *yielded = NULL
    if type(result) is not CoroutineType:
        if result is None or not isawaitable(result):
            return None
        result = wait_for(result)
    waits = PyIter_Send(result, None, &yielded)
    value = <object>yielded
    Py_DECREF(value)
    return (result, value, context) if waits else None

cdef class Calls:  # calls a function with one message after the other, as HotLane._handle_bare does
    cdef object _handler, _left
    cdef LaneCells _lane
    cdef long long _version
    cdef readonly object message  # the one that was taken last

    def __init__(self, LaneCells lane not None, handler, left, long long version):
        self._lane, self._handler, self._left, self._version = lane, handler, left, version

    def next(self):  # what is left of the first call that waits; None at the end of the turn
        cdef Counter changes = self._lane.intake.changes
        function, guard = self._handler.function, self._handler.guard
        for message in self._left:
            self.message = message
            result = function(message)
            if result is not None:
                rest = first_step(result, self._lane.intake.wait_for, None)
                if rest is not None or not self._lane.running or guard is not None and not guard.clear:
                    return rest
            if changes.value != self._version:
                break

cdef bint usual(BusInlet bus, session, priority, headers, correlation_id):
    return bus._intake is not None and session is DEFAULT_SESSION and priority is NORMAL and headers is correlation_id is None

cdef class BusInlet:  # as penstock.bus.inlet.PythonBusInlet
    cdef public IntakeCells _intake

    @cython.binding(True)
    async def publish(self, event, *, session=DEFAULT_SESSION, priority=NORMAL, headers=None, correlation_id=None, durable=False, timeout=30.0):
        if durable or not usual(self, session, priority, headers, correlation_id) or not self._intake.put(event):
            await self._publish(event, session, priority, headers, correlation_id, durable, timeout)

    @cython.binding(True)
    def publish_nowait(self, event, *, session=DEFAULT_SESSION, priority=NORMAL, headers=None, correlation_id=None):
        if not usual(self, session, priority, headers, correlation_id) or not self._intake.put(event):
            self._publish_nowait(event, session, priority, headers, correlation_id)

    @cython.binding(True)
    async def publish_and_wait(self, event, *, session=DEFAULT_SESSION, priority=NORMAL, headers=None, correlation_id=None, timeout=30.0):
        sound = (type(timeout) is float or type(timeout) is int) and timeout >= 0 and usual(self, session, priority, headers, correlation_id)
        begun = self._intake.handle(event) if sound else None
        if begun is not None and begun is self._intake.done:
            return begun
        return await self._publish_and_wait(begun, event, session, priority, headers, correlation_id, timeout)
