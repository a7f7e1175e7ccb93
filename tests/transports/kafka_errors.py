"""A broker inside the client's own library, which answers with errors that it is told.

``python -m tests.transports.kafka_errors NAME`` asks it for committed offsets, in a process that may die of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError

from penstock.system import System
from penstock.transports.kafka_admin import KafkaAdmin
from penstock.transports.kafka_settings import KafkaSettings

OFFSET_FETCH = 9
"""The number of the request in Kafka's protocol."""
_PRODUCER = 0


@contextmanager
def broker_of_errors(request: int, error: int, times: int) -> Iterator[str]:
    """Its address; it answers the first requests of one kind with an error, and all others well."""
    library = _library()
    why = ctypes.create_string_buffer(512)
    client = library.rd_kafka_new(_PRODUCER, None, why, len(why))
    assert client, why.value
    cluster = library.rd_kafka_mock_cluster_new(client, 1)
    errors = (ctypes.c_int * times)(*[error] * times)
    library.rd_kafka_mock_push_request_errors_array(cluster, request, times, errors)
    try:
        yield library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)


def _library() -> ctypes.CDLL:
    """The one that the client has loaded."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    (file,) = folder.glob("librdkafka-*.so*")
    library = ctypes.CDLL(str(file))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_new.argtypes = (number, pointer, ctypes.c_char_p, ctypes.c_size_t)
    library.rd_kafka_mock_cluster_new.restype = pointer
    library.rd_kafka_mock_cluster_new.argtypes = (pointer, number)
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = (pointer,)
    library.rd_kafka_mock_push_request_errors_array.argtypes = (
        *(pointer, ctypes.c_int16),
        *(ctypes.c_size_t, ctypes.POINTER(number)),
    )
    library.rd_kafka_mock_cluster_destroy.argtypes = (pointer,)
    library.rd_kafka_destroy.argtypes = (pointer,)
    return library


async def main(name: str) -> None:
    with broker_of_errors(OFFSET_FETCH, getattr(KafkaError, name), times=3) as address:
        admin = KafkaAdmin(KafkaSettings(address, {}, {}), System(), seconds=30.0)
        print(await admin.committed("billing", {"orders": 2}))
        await admin.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
