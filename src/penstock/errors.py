"""Every error Penstock raises, in one tree named by whose fault it is.

::

    PenstockError
    ├── UsageError                 the call is wrong; change the call
    │   ├── InvalidName            a topic, group or key with characters or a length that is not allowed
    │   ├── InvalidOption          an option outside its range
    │   ├── UnknownTopic           the topic does not exist and may not be created here
    │   ├── UnknownPartition       the topic has fewer partitions than that
    │   ├── RecordTooLarge         one record is larger than a batch may be
    │   ├── OffsetOutOfRange       the offset is gone (retention) or not written yet
    │   ├── SubscriberBusy         the subscriber name is in use by a live subscription
    │   ├── Fenced                 a newer generation of the group, or opening of the producer, has taken over
    │   ├── Closed                 your code closed it
    │   ├── Forked                 opened before fork(), used after it
    │   ├── NotSupported           this store or transport cannot do that
    │   ├── MissingExtra           an optional package is not installed
    │   ├── InvalidMessage         a message that does not decode or is of a type that is not known
    │   ├── NoHandler              nobody handles the command
    │   ├── DuplicateHandler       the command has a handler already
    │   ├── WouldDeadlock          a handler waits for itself
    │   ├── UnknownDeadLetter      no dead letter has this id
    │   ├── NotPending             the schedule or the approval is over
    │   └── ReplayRefused          the dead letter cannot be replayed, or came back too often
    ├── BusyError                  nobody's fault; try again later
    │   ├── BufferFull             the bound of a buffer is reached
    │   ├── RetentionFull          the topic rejects records until some are consumed
    │   ├── RateLimited            too many calls in too short a time
    │   ├── LimitReached           a limit of the bus is reached
    │   ├── LoadShed               the pressure is so high that the message was refused
    │   ├── CircuitOpen            the handler fails so often that it is not called for a while
    │   └── DeadlineExceeded       the wait was longer than its deadline; the outcome is unknown
    ├── HandlerError               the fault of a handler, or of who decides about a command
    │   ├── HandlerFailed          a handler raised; its error is the cause
    │   ├── NonRetryable           a handler says that trying again is no use
    │   ├── ApprovalDenied         somebody said no
    │   ├── ApprovalExpired        nobody said yes in time
    │   └── InvalidDecision        an approval policy answered with something else than a decision
    ├── StorageError               the machine's fault
    │   ├── KeyNotFound            a store has no such key
    │   ├── StoreFailed            a disk or database call failed
    │   ├── ProducerDied           the process that published into a shared ring is gone
    │   ├── Poisoned               an earlier write or sync failed; reopen to go on
    │   └── TransactionPending     committed, and not wholly in its topics yet
    ├── TransportError             the broker's fault, or the network's
    │   ├── Unreachable            the broker does not answer
    │   └── BrokerFailed           the broker refused or failed a call
    └── DamageError                the bytes on disk are not the bytes that were written
        ├── DamagedEntry           an entry of the log fails its checks
        ├── DamagedFile            a small file (head, offsets, topic, footer) fails its checks
        └── UnsupportedFormat      written by a newer version
"""

from __future__ import annotations

from typing import Self


class PenstockError(Exception):
    """The root of every error that Penstock raises on purpose."""

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.fields = fields

    def __getattr__(self, name: str) -> object:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    def again(self) -> Self:
        """A copy without a traceback, to be raised many times without keeping frames alive."""
        return type(self)(str(self), **self.fields)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.fields))


def _rebuild(kind: type[PenstockError], message: str, fields: dict[str, object]) -> PenstockError:
    return kind(message, **fields)


class UsageError(PenstockError):
    """The call is wrong: change the call."""


class InvalidName(UsageError, ValueError):
    """A name with characters or a length that is not allowed."""


class InvalidOption(UsageError, ValueError):
    """An option outside its range; the message names the range."""


class UnknownTopic(UsageError, LookupError):
    """The topic does not exist and may not be created by this call."""


class UnknownPartition(UsageError, LookupError):
    """The topic has fewer partitions than that."""


class RecordTooLarge(UsageError, ValueError):
    """One record is larger than an entry may be. Nothing was written."""


class OffsetOutOfRange(UsageError, LookupError):
    """The offset was removed by retention, or is not written yet; the message has the range."""


class SubscriberBusy(UsageError):
    """A live subscription, here or in another process, uses this subscriber name."""


class Fenced(UsageError):
    """A newer generation of the group has taken over, so nothing was written.

    The caller was replaced while it was away: it stops, and joins the group again. Fields:
    generation (the caller's), current (the group's). Members of a group also get: group, member,
    topic and partition, and reason: ``removed``, ``generation`` (a heartbeat tells what is still
    theirs) or ``partition`` (it is another member's). Producers get: producer, epoch (the caller's), current, and
    the reason ``epoch``.
    """


class Closed(UsageError):
    """Your code closed it before this call."""


class Forked(UsageError):
    """The object was opened before ``fork()``: open a new one in the child."""


class NotSupported(UsageError):
    """This store or transport cannot do what was asked."""


class MissingExtra(UsageError, ImportError):
    """An optional package is needed; the message names the extra to install."""


class InvalidMessage(UsageError, ValueError):
    """A message that does not decode, or whose type is not known. Fields: type or topic, reason."""


class NoHandler(UsageError, LookupError):
    """Nobody handles this command: register a handler first. Fields: command."""


class DuplicateHandler(UsageError):
    """The command has a handler in this scope: a command has exactly one. Fields: command."""


class WouldDeadlock(UsageError):
    """A handler waits for something that waits for the handler."""


class UnknownDeadLetter(UsageError, LookupError):
    """No dead letter has this id; it may have been purged, replayed or dropped. Fields: id."""


class ReplayRefused(UsageError):
    """The dead letter cannot be replayed, or came back too often. Fields: id, replays, reason."""


class NotPending(UsageError, LookupError):
    """The schedule has fired or was cancelled, or the approval was decided. Fields: id."""


class BusyError(PenstockError):
    """Nobody's fault: try again later. Nothing was written, unless it is DeadlineExceeded."""


class BufferFull(BusyError):
    """The bound of a buffer is reached and the call was told not to wait. Nothing was written."""


class RetentionFull(BusyError):
    """The topic is at its size and rejects records until some are consumed. Nothing was written."""


class RateLimited(BusyError):
    """Too many calls in too short a time. Fields: retry_after, in seconds."""


class LimitReached(BusyError):
    """A limit of the bus is reached: raise it, or use less. Fields: limit, value."""


class LoadShed(BusyError):
    """The pressure is so high that the message was refused. Nothing was queued.

    Fields: code (``SHED_LOAD``), retry_after in seconds, level, topic or subsystem.
    """


class CircuitOpen(BusyError):
    """The handler failed so often that it is not called for a while. Fields: handler, retry_after."""


class DeadlineExceeded(BusyError, TimeoutError):
    """The wait was longer than its deadline. The outcome is unknown: it may still happen."""


class HandlerError(PenstockError):
    """The fault of a handler, or of who decides about a command."""


class HandlerFailed(HandlerError):
    """A handler raised; its error is the cause. Fields: handler, message_type."""


class NonRetryable(HandlerError):
    """Raise it in a handler when trying again is no use: ``raise NonRetryable(why) from error``."""


class ApprovalDenied(HandlerError):
    """The command was not approved. Fields: approval_id, reason, decided_by."""


class ApprovalExpired(HandlerError):
    """Nobody approved the command in time. Fields: approval_id."""


class InvalidDecision(HandlerError, TypeError):
    """A policy answered with something else than a Decision or None. Fields: policy, answer."""


class StorageError(PenstockError):
    """The machine's fault: a disk, a file system or a database."""


class KeyNotFound(StorageError, KeyError):
    """The store has no such key."""

    __str__ = Exception.__str__


class StoreFailed(StorageError):
    """A call to the disk or the database failed; the cause is chained."""


class ProducerDied(StorageError):
    """The process that published into a shared ring is gone; all it had published was read."""


class Poisoned(StorageError):
    """An earlier write or sync failed, so nothing more is acknowledged: reopen to go on."""


class TransactionPending(StorageError):
    """The transaction is committed, but a failure kept a part of it from its topics until now.

    Do not repeat it: it is rolled forward when the producer is used again, when the log is opened, and
    by its maintenance. Fields: producer, number. The cause is chained.
    """


class TransportError(PenstockError):
    """The broker's fault, or that of the network between. Fields: transport."""


class Unreachable(TransportError):
    """The broker did not answer within the deadline. Fields: transport, address, seconds.

    What was on its way may have arrived. The address has no password in it.
    """


class BrokerFailed(TransportError):
    """The broker refused or failed a call; the cause is chained. Fields: transport."""


class DamageError(PenstockError):
    """The bytes on disk are not the bytes that were written."""


class DamagedEntry(DamageError):
    """An entry of the log fails its checks. Fields: file, position, offset, reason."""


class DamagedFile(DamageError):
    """A small file fails its checks. Fields: file, reason."""


class UnsupportedFormat(DamageError):
    """Written by a newer version of Penstock. Fields: file, version."""
