"""The rows between the stages of the operators, and the rows of their state. Both implementations use these schemas."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StringType, StructType

POSITION = MapType(IntegerType(), LongType())
# The state cannot contain maps with other keys than text.
STORED_POSITION = ArrayType(StructType().add("partition", IntegerType()).add("offset", LongType()))

# See order_key.py.
ORDER_KEY = StructType()
for name in ("rank", "prefix_1", "prefix_2", "rest_1", "rest_2"):
    ORDER_KEY.add(name, LongType())


def change_schema(row_type: DataType) -> StructType:
    """A change of a key: its row before and after. `step` is the difference to the key's previous version."""
    return (
        StructType()
        .add("key", StringType())
        .add("before", row_type)
        .add("after", row_type)
        .add("version", LongType())
        .add("position", POSITION)
        .add("step", LongType())
    )


def key_state_schema(row_type: DataType) -> StructType:
    """The state of a key. `row` is null if the key was removed."""
    return (
        StructType()
        .add("order", LongType())
        .add("sequence", LongType())
        .add("version", LongType())
        .add("position", STORED_POSITION)
        .add("row", row_type)
    )


def member_schema(item_type: DataType) -> StructType:
    """A member of a group."""
    return StructType().add("key", StringType()).add("rank", LongType()).add("item", item_type)


def group_state_schema(item_type: DataType) -> StructType:
    """The state of a group, apart from its members. `candidates` are its first members."""
    return (
        StructType()
        .add("size", LongType())
        .add("version", LongType())
        .add("position", STORED_POSITION)
        .add("candidates", ArrayType(member_schema(item_type)))
    )


def result_schema(item_type: DataType) -> StructType:
    """The top n of a group."""
    return (
        StructType()
        .add("group", StringType())
        .add("items", ArrayType(item_type))
        .add("version", LongType())
        .add("position", POSITION)
    )
