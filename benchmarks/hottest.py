"""The three hottest costs of each profiled workload, and what was done about them.

``benchmarks.summary`` writes docs/benchmarks/where-the-time-goes.md from the profiles in the committed JSON. The
shares are those of the samples in which any thread worked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from benchmarks.report import amount, table
from benchmarks.results import Before, Profile, Report, Result

NAME = "where-the-time-goes.md"
HOTTEST = 3
NOTHING = "nothing yet"
IDLE = "(idle)"
SHOWING = ("console.py", "live.py", "progress.py", "screen.py", "segment.py", "<frozen os>")
"""Of the progress bar, which runs beside the sampled case."""
LOOP = "the benchmark's own loop; it is in what every contender takes"
UNDER = "the benchmark's own function, and what is compiled under it: the sampler sees Python alone"
WAKE = "the loop is woken once for each commit, not for each record; calls in flight share it"
CLIENT = "the client of the broker, as it comes"
ONCE = "preparing a run and clearing up after it"
LOOP_TURN = "a turn of asyncio's own loop: as few as there are tasks that wait"
DONE = {
    "system.py sync": "the disk's own time: what comes while a sync runs shares the next one",
    "system.py write": "one `pwritev` for all entries of a commit, and one for the head",
    "system.py read": "large pieces; the copy out of the page cache is what is left",
    "system.py status": "one `fstat`, as other processes may have written or removed the file",
    "system.py sync_directory": "only when a file is made",
    "selector_events.py _write_to_self": WAKE,
    "selector_events.py _read_from_self": WAKE,
    "columns.py plain_lengths": "types and lengths of a whole batch in one call: compiled where the twin was built",
    "columns.py _join": "one call of C for the bytes of a batch",
    "columns.py _sum": "one call of numpy for a batch",
    "columns.py records": "records are cut out of the entry by the compiled twin; the objects themselves remain",
    "checks.py checked_columns": "the lists are the caller's, who may change them meanwhile",
    "inlet.py add_nowait": "one append for each record; encoding is left to the commit thread",
    "writer.py commit": "all that waits is taken at once",
    "inlet.py publish_nowait": "one look-up of the topic for a record: compiled where the twin was built",
    "subscription.py __anext__": "a coroutine for each record is what `async for` costs; `batches()` avoids it",
    "subscription.py next_batch": "cut out of what is at hand, without a turn of the loop",
    "frame.py parse_body": "one CRC-32C over the body of an entry, at the speed of the hardware",
    "frame.py view": "views of the columns of an entry; only what is compressed is copied, and that by a thread",
    "fetched.py take": "records are made where they are used, in one step of the compiled twin; the objects themselves remain",
    "fetched.py made": "records are made where they are used, in one step of the compiled twin; the objects themselves remain",
    "arrow.py to_batch": "columns are made over the bytes of the entry, without a copy for each record",
    "lane.py make_room": "once for a turn in which somebody waited for room",
    "one_by_one.py __anext__": "a coroutine for each record is what `async for` costs; `batches()` avoids it",
    "lane.py _run_plain": "the usual case, one handler and nothing around it, is written out in one loop",
    "turns.py _go_on": "the usual case is compiled: queue, context, handler and books of each event; the handler itself is in it",
    "intake.py enclose": "one small object for each message: its identity, its time, its context",
    "drive.py begin": "a handler starts in place; a task is made only when it waits",
    "commands.py execute": "no task for a command; its timeout is an entry of a heap, with one timer for all",
    "timers.py call_after": "an entry of a heap, with one timer for all that wait",
    "short_way.py publish_nowait": "the short way of a hot topic: compiled where the twin was built",
    "short_way.py publish": "a coroutine for each event is what `await` costs; `publish_nowait` avoids it",
    "hot.py _handle_bare": "handlers are called in a row out of the ring: compiled where the twin was built",
    "shared_entry.py write": "a batch is one entry with one checksum, copied once into shared memory",
    "hot.py _handle_compiled": "the compiled loop and the handlers that it calls; in Python only for what waits or fails",
    "hot.py _handle_batch": "once for a turn of up to 2,048 messages: what can be done once is not done for each",
    "<string> __init__": "notes on an event that somebody waits for; all others go without",
    "dispatch.py <listcomp>": "only for events with filters, and for those that come again",
    "arrow.py _bytes": "one copy for a chunk of entries",
    "shared_ring.py _batches": "one look at the cursor for all entries that are there",
    "system.py sleep": "waiting for the other process: short first, then longer",
    "system.py make_directory": "once for a topic: the run is short, and begins with a new log",
    "system.py open": "once for a file: the run is short, and begins with a new log",
    "<frozen posixpath> dirname": "once for a file that is made",
    "system.py list_directory": "once for a topic: the run is short, and begins with a new log",
    "<frozen posixpath> lexists": "once for a file that is made",
    "contenders.py publish_and_wait_each": UNDER,
    "events.py __init__": LOOP_TURN,
    "events.py _run": LOOP_TURN,
    "base_events.py run_forever": LOOP_TURN,
    "events.py cancel": LOOP_TURN,
    "parallel.py _take": "one note for each record in flight: offsets are committed in order, whatever order handlers end in",
    "hot.py unawaited": UNDER,
    "hot.py awaited": UNDER,
    "books.py handle": UNDER,
    "blocks.py handle": UNDER,
    "publishers.py _publish_nowait": UNDER,
    "read.py _each": LOOP,
    "model.py more": LOOP,
    "subscription.py __len__": LOOP,
    "contenders.py publish_each": UNDER,
    "contenders.py burst": UNDER,
    "rings.py step": LOOP,
    "books.py take": LOOP,
    "partitions.py _measure": LOOP,
    "metrics.py queued": UNDER,
    "metrics.py commands": LOOP,
    "_methods.py _sum": "one call of numpy for an entry, 2 µs of the 200 that 1,000 records take; it lets other threads run, so the sampler meets it too often",
    "frame.py draft": "one CRC-32C over the body of an entry, at the speed of the hardware",
    "tasks.py current_task": "a call of asyncio for the handler and one for the timeout, as both are those of the task",
    "key_lanes.py leave": "one look-up for each record, so that those of one key stay in order",
    "_weakrefset.py _remove": "asyncio forgets a task that has ended",
    "system.py <listcomp>": "once for a topic: the run is short, and begins with a new log",
    "system.py close": "once for a file",
    "inotify.py close": "once, at the end of a run: the kernel waits until nobody looks at the watch any more",
    "system.py try_lock": "tried once for each append, as other processes may write to the same log",
    "dispatch.py succeed": "counts of the handler and of its breaker: a few attributes for each event",
    "handover.py __len__": "a count that is kept, for each call; it was added up over the classes before",
    "agenda.py add": "an entry of a heap for each message that is to come",
    "consumers.py advance": "once for a batch of up to 1,024 entries",
    "typing.py cast": "once for a batch of up to 1,024 entries",
    "bus.py _publish_long": "the way of a message whose topic has partitions: which one, and is there room",
    "pathlib.py unlink": "the job removes the heads, to measure the recovery without them",
    "selector_events.py write": "one `send` for all that waits for the broker; a commit of each record is one for each",
    "timers.py __aenter__": "a timeout for each call: an entry of a heap, with one timer for all",
    "connection.py pack_command": CLIENT,
    "kafka_member.py raising": "inside librdkafka, which waits for records or hands them over",
    "drive.py _begin_event": "a handler starts in place; a task is made only when it waits",
    "commands.py _end": "a count and a mark for each command, so that `stop` knows what is at work",
    "agenda.py wait_seconds": "asked once for each message that is to come: the first of a heap",
    "shared_entry.py copy": "one copy of a batch and one checksum, so that the writer may go on meanwhile",
    "hashing.py key_hash": "hashes of short keys are remembered; the handler sleeps here, and little else is to be seen",
    "hashing.py key_bytes": "hashes of short keys are remembered; the handler sleeps here, and little else is to be seen",
    "queue.py room": "three numbers: nothing is counted for it",
    "tail.py add": "one slot for a batch, so that subscribers here need not read it from the disk",
    "latency.py add": "one bucket of a histogram for each call",
    "outbox.py send": "a future for each record that somebody waits for; those that wait together are one batch",
    "strategies.py strategy": "one look-up for each call",
    "random.py randbytes": ONCE,
    "random.py seed": ONCE,
    "kafka.py wait_for": ONCE,
    "kafka.py send": ONCE,
    "kafka_admin.py _times": "once, when a consumer begins: where the partition starts and ends",
    "kafka_offsets.py _ask": "once, when a consumer begins: what the group has committed",
    "kafka_member.py run_job": "waiting for the next commit, or for the broker's answer to the last",
    "kafka_producer.py send": "a call of the client for each record, in a thread of its own",
    "kafka_producer.py _rows": "the columns of a batch, side by side, without an object for each record",
    "routing.py _fnv1a_all": "the keys of a batch are hashed together, in numpy",
    "client.py _send_publish": CLIENT,
    "client.py <genexpr>": CLIENT,
    "command.py hpub_cmd": CLIENT,
    "parser.py parse": CLIENT,
    "nats_producer.py _chunks": "records are put together until the server would refuse more",
    "nats_records.py encoded_headers": "the key and what else is not the value, as text, for each record",
    "pulsar_producer.py _send_all": "a call of the client for each record, in a thread of its own",
    "pulsar_producer.py runs": "acknowledgements of one entry of the broker are put together",
    "pulsar_records.py encoded": "one message of the client for each record",
    "rabbitmq_records.py _map": "a message of AMQP for each record, packed by a few functions of ours",
    "rabbitmq_records.py _binary": "a message of AMQP for each record, packed by a few functions of ours",
    "rabbitmq_streams.py <listcomp>": "one publishing for all records of a call",
    "rabbitmq_records.py decoded": "a message of AMQP for each record, bounded and whole, also those of others",
    "rabbitmq_records.py _read_binary": "a message of AMQP for each record, bounded and whole, also those of others",
    "rabbitmq_records.py _read_map": "a message of AMQP for each record, bounded and whole, also those of others",
    "redis_producer.py pieces": "one entry of a stream for many records: their sizes are added up",
    "redis_consumer.py records_of": "lengths in columns and all bytes in one string: the objects themselves remain",
    "redis_consumer.py _fetch_some": "one script for all partitions, which reads ahead",
    "selector_events.py _read_ready__data_received": CLIENT,
}  # fmt: skip
SEEN_WAITING = "Nobody was seen at work: it waits nearly all of the time."
FILES = {
    "base_events.py": LOOP_TURN,
    "events.py": LOOP_TURN,
    "futures.py": LOOP_TURN,
    "queues.py": LOOP_TURN,
    "runners.py": LOOP_TURN,
    "tasks.py": LOOP_TURN,
    "jobs.py": LOOP,
    "metrics.py": LOOP,
    "connection.py": CLIENT,
    "streams.py": CLIENT,
    "pathlib.py": ONCE,
    "subprocess.py": ONCE,
    "shutil.py": ONCE,
    "tempfile.py": ONCE,
}
"""What stands for any function of a file that is not Penstock's."""


def done(function: str) -> str:
    """What was done about a function."""
    return DONE.get(function) or FILES.get(function.partition(" ")[0], NOTHING)


def costs(profiles: Iterable[Profile]) -> list[tuple[str, float, str]]:
    """Function, share and thread, the one that was there most, of the hottest costs of one case."""
    seen: dict[str, Counter[str]] = {}
    for profile in profiles:
        for spot in profile.hotspots:
            if not spot.line.startswith(IDLE) and not spot.function.startswith(SHOWING):
                threads = seen.setdefault(spot.function, Counter())
                threads[profile.thread] += round(spot.share * profile.samples)
    total = sum(threads.total() for threads in seen.values()) or 1
    ranked = sorted(seen.items(), key=lambda one: -one[1].total())[:HOTTEST]
    return [
        (function, threads.total() / total, threads.most_common(1)[0][0])
        for function, threads in ranked if threads.total()
    ]  # fmt: skip


def markdown(reports: Iterable[Report], before: Mapping[str, Before]) -> str:
    """The page."""
    text = [
        "# Where the time goes",
        "",
        "The three hottest costs of each profiled workload, and what was done about them. This page is generated by",
        "`python -m benchmarks.summary` from the profiles in the JSON of the suites; the whole profiles are at the end of",
        "their pages. A share is that of the samples in which a thread worked: waiting for others is not in it. What could",
        "still be done, and why it is not, stands in [what is missed](misses.md).",
        "",
        "Under each table stands what the first committed run said, from [before.json](before.json): before most of that was",
        "done. The speed of the machine varies from hour to hour by more than a half: compare the shares, and the ratios to the",
        "bound of the same run, where a workload has one.",
        "",
        "What lets other threads run, as numpy and calls of the system do, is met by the sampler more often than it takes time.",
        "Of jobs in other processes, those processes are sampled. Of Spark, py-spy samples the driver and the workers of Python,",
        "and Java's own flight recorder its Java. Not sampled is the wake-up of an idle loop, which hardly works.",
        "",
        "`python -m benchmarks.profile NAME` samples any case again. `build/peers/bin/py-spy record --native` sees into",
        "compiled code as well. What the compiled twin saves is [counted in instructions](twin.md), by callgrind.",
        "",
    ]
    for report in reports:
        if report.profiles:
            text += [f"## {report.suite.capitalize()}", "", *_cases(report, before)]
    return "\n".join(text).rstrip() + "\n"


def _cases(report: Report, before: Mapping[str, Before]) -> Iterator[str]:
    results = {one.name: one for one in report.results}
    for title, profiles in groupby(report.profiles, key=lambda one: one.title):
        yield f"### `{title}`: {_rate(results.get(title))}"
        yield ""
        rows = [
            [f"{share:.0%}", f"`{function}`", thread, done(function)]
            for function, share, thread in costs(list(profiles))
        ]
        yield from (
            table(["share", "function", "thread", "what was done"], rows)
            if rows
            else (SEEN_WAITING, "")
        )
        if title in before and before[title].started != report.started:
            yield from (_as_it_was(before[title]), "")


def _rate(one: Result | Before | None) -> str:
    if one is None:
        return "not measured"
    ratio = "" if one.to_bound is None else f", {one.to_bound:.2f} of the bound"
    return amount(one.median, one.unit) + ratio


def _as_it_was(one: Before) -> str:
    spots = ", ".join(f"`{function}` {share:.0%}" for function, share, _ in one.costs)
    return f"Before ({one.started.partition(' ')[0]}, {one.scale} scale): {_rate(one)}; {spots}."
