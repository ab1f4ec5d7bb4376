"""The rows between the stages of the operators, and the rows of their state. Rows and items of a query are JSON text."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType

POSITION = MapType(IntegerType(), LongType())
# The state cannot contain maps with other keys than text.
STORED_POSITION = ArrayType(StructType().add("partition", IntegerType()).add("offset", LongType()))

# See OrderKey.java.
ORDER_KEY = StructType()
for name in ("rank", "prefix_1", "prefix_2", "rest_1", "rest_2"):
    ORDER_KEY.add(name, LongType())

# A change of a key: its row before and after. `step` is the difference to the key's previous version.
CHANGE = (
    StructType()
    .add("key", StringType())
    .add("before", StringType())
    .add("after", StringType())
    .add("version", LongType())
    .add("position", POSITION)
    .add("step", LongType())
)
# The state of a key. `row` is null if the key was removed.
KEY_STATE = (
    StructType()
    .add("order", LongType())
    .add("sequence", LongType())
    .add("version", LongType())
    .add("position", STORED_POSITION)
    .add("row", StringType())
)
MEMBER = StructType().add("key", StringType()).add("rank", LongType()).add("item", StringType())
# The state of a group, apart from its members. `candidates` are its first members.
GROUP_STATE = (
    StructType()
    .add("size", LongType())
    .add("version", LongType())
    .add("position", STORED_POSITION)
    .add("candidates", ArrayType(MEMBER))
)
# The top n of a group.
RESULT = (
    StructType()
    .add("group", StringType())
    .add("items", ArrayType(StringType()))
    .add("version", LongType())
    .add("position", POSITION)
)
