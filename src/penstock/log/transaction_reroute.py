"""Records of a decided transaction whose topic got another partition count before they were appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.log.batch import Router
from penstock.log.codec import Codec, decompress
from penstock.log.columns import Columns, decode
from penstock.log.topic import TopicFile
from penstock.log.transaction_decision import EntryNote, Share
from penstock.log.transaction_staging import Drafted, drafted
from penstock.stores.base import PersistentBackingStore
from penstock.system import Buffer


def rerouted(
    store: PersistentBackingStore,
    share: Share,
    bodies: Callable[[EntryNote], Sequence[Buffer]],
) -> Iterator[Drafted]:
    """The records of a share as entries for the partitions of now; each key keeps its order."""
    state = TopicFile(store, share.topic).read()
    router = Router(state.partitions, share.partition % state.partitions)
    for one in share.entries:
        yield from drafted(state, _columns(one, b"".join(bodies(one))), router)


def _columns(one: EntryNote, body: bytes) -> Columns:
    if one.codec != Codec.NONE:
        body = bytes(decompress(one.codec, body, one.body_length))
    return decode(body, one.flags, one.record_count, 0, 0).columns()
