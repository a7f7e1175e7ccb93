"""``penstock export``: the records of a topic as a file that other tools read."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Topic, Url
from penstock.cli.places import Place, place_of, run

if TYPE_CHECKING:
    from penstock.cli.positions import Range


class FileFormat(enum.StrEnum):
    """What a file may be."""

    PARQUET = "parquet"
    ARROW = "arrow"
    JSONL = "jsonl"
    CSV = "csv"


ENDINGS = {
    ".parquet": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".ipc": FileFormat.ARROW,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
    ".csv": FileFormat.CSV,
}


def export(
    context: typer.Context,
    topic: Topic,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where they go; its ending tells the format.")
    ],
    url: Url = None,
    format: Annotated[  # noqa: A002 - the option's name
        FileFormat | None,
        typer.Option("--format", "-f", help="The format, if the name does not tell."),
    ] = None,
    offset: Annotated[
        str, typer.Option("--offset", "-o", metavar="PLACE", help="Which ones, as for consume.")
    ] = "start",
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="This partition alone; may come again."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace a file that is there.")] = False,
) -> None:
    """Write the records of a topic to a file: Parquet, Arrow, JSON lines or CSV."""
    from penstock import System
    from penstock.cli.output import tell
    from penstock.cli.positions import parse_range
    from penstock.cli.table import counted

    place = place_of(context, url)
    kind = _kind(file, format)
    _check(file, yes)
    wanted = parse_range(offset, System().clock.time_ms())
    count = run(_export(place, topic, file, kind, wanted, partition or []))
    tell(f"{counted(count, 'record')} of {topic} to {file}")


def _kind(file: Path, given: FileFormat | None) -> FileFormat:
    from penstock import errors

    found = given or ENDINGS.get(file.suffix.lower())
    if found is None:
        raise errors.InvalidOption(
            f"{file.name!r} does not tell the format: use an ending of {', '.join(ENDINGS)}, or "
            "--format",
            option="format",
        )
    return found


def _check(file: Path, yes: bool) -> None:
    from penstock import errors

    if file.is_dir() or not file.absolute().parent.is_dir():
        raise errors.InvalidOption(
            f"{file} cannot be written: there is no such folder", option="file"
        )
    if file.exists() and not yes:
        raise errors.InvalidOption(f"{file} is there: --yes replaces it", option="file")


async def _export(
    place: Place, topic: str, file: Path, kind: FileFormat, wanted: Range, partitions: list[int]
) -> int:
    from penstock import System
    from penstock.cli.exporting import batches, writer_of
    from penstock.cli.progress import progress
    from penstock.cli.reading import parts_of

    writer = writer_of(kind.value)
    partial = file.with_name(f".{file.name}.{System().random.getrandbits(64):016x}.part")
    count = 0
    try:
        async with place.reading() if place.is_log else place.writing() as transport:
            parts = await parts_of(transport, topic, wanted, partitions)
            total = sum(one.size for one in parts)
            with progress(topic, total) as advance, _private(partial) as target:
                writer.begin(target)
                async for batch in batches(transport, topic, parts, writer.wants):
                    writer.add(batch)
                    count += len(batch)
                    advance(len(batch))
                writer.end()
        # Under its name it is whole, or it is not there.
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _private(path: Path) -> IO[bytes]:
    """A new file for this user alone, as those of a log are. Nobody can guess its name before."""
    from penstock import System

    return os.fdopen(System().files.open(str(path), create=True), "wb")
