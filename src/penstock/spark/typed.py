"""From a message class to Spark's schema, so that a topic of events is a typed table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import inspect
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidOption
from penstock.messages import check_type

DECIMAL = DecimalType(38, 18)
DEPTH_MAX = 20
"""Classes within classes: one that holds itself has no table."""

_PLAIN: Mapping[type[Any], DataType] = {
    inspect.StrType: StringType(),
    inspect.IntType: LongType(),
    inspect.FloatType: DoubleType(),
    inspect.BoolType: BooleanType(),
    inspect.BytesType: BinaryType(),
    inspect.DateTimeType: TimestampType(),
    inspect.DateType: DateType(),
    inspect.DecimalType: DECIMAL,
    inspect.UUIDType: StringType(),
}
_LISTS = (
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.CollectionType,
    inspect.VarTupleType,
)
_STRUCTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)


def schema_of(kind: type) -> StructType:
    """The columns of a message class; InvalidOption names a field that no column can hold."""
    check_type(kind)
    return _struct(inspect.type_info(kind), kind.__name__, 0)


def required_of(kind: type) -> list[str]:
    """The fields that a message must have: those without a default that may not be None."""
    found = inspect.type_info(kind)
    assert isinstance(found, _STRUCTS)
    return [one.encode_name for one in found.fields if one.required and not _takes_none(one.type)]


def _struct(found: inspect.Type, place: str, depth: int) -> StructType:
    if not isinstance(found, _STRUCTS) or depth > DEPTH_MAX:
        raise _refused(
            place, "is not a class with fields" if depth <= DEPTH_MAX else "holds itself"
        )
    return StructType(
        [
            StructField(one.encode_name, _type(one.type, f"{place}.{one.name}", depth + 1), True)
            for one in found.fields
        ]
    )


def _type(found: inspect.Type, place: str, depth: int) -> DataType:
    if isinstance(found, inspect.Metadata):
        return _type(found.type, place, depth)
    plain = _PLAIN.get(type(found))
    if plain is not None:
        return plain
    if isinstance(found, _LISTS):
        return ArrayType(_type(found.item_type, f"{place}[]", depth))
    if isinstance(found, inspect.DictType):
        return _map(found, place, depth)
    if isinstance(found, _STRUCTS):
        return _struct(found, place, depth)
    if isinstance(found, inspect.UnionType):
        return _optional(found, place, depth)
    if isinstance(found, (inspect.EnumType, inspect.LiteralType)):
        return _choice(found, place)
    raise _refused(place, f"is {type(found).__name__.removesuffix('Type').lower()}")


def _map(found: inspect.DictType, place: str, depth: int) -> MapType:
    if not isinstance(found.key_type, inspect.StrType):
        raise _refused(place, "is a dict whose keys are not str")
    return MapType(StringType(), _type(found.value_type, f"{place}{{}}", depth))


def _optional(found: inspect.UnionType, place: str, depth: int) -> DataType:
    others = [one for one in found.types if not isinstance(one, inspect.NoneType)]
    if len(others) != 1:
        raise _refused(place, "may be of several types")
    return _type(others[0], place, depth)


def _choice(found: inspect.EnumType | inspect.LiteralType, place: str) -> DataType:
    values = (
        [one.value for one in found.cls] if isinstance(found, inspect.EnumType) else found.values
    )
    if all(isinstance(one, str) for one in values):
        return StringType()
    if all(isinstance(one, int) for one in values):
        return LongType()
    raise _refused(place, "is a choice between values of several types")


def _takes_none(found: inspect.Type) -> bool:
    return isinstance(found, (inspect.NoneType, inspect.AnyType)) or (
        isinstance(found, inspect.UnionType) and found.includes_none
    )


def _refused(place: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"{place} {why}, which no column of Spark can hold: give it another type, or read the topic "
        "without a class and take the value apart yourself",
        option=place,
    )
