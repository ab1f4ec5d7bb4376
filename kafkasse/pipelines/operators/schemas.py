"""The rows between the stages of the operators, and the rows of their state. Rows and items of a query are JSON text."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

TEXT, NUMBER = StringType(), LongType()


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in fields.items()])


POSITION = MapType(IntegerType(), NUMBER)
# The state cannot contain maps with other keys than text.
STORED_POSITION = ArrayType(_struct(partition=IntegerType(), offset=NUMBER))
# See OrderKey.java.
ORDER_KEY = _struct(rank=NUMBER, prefix_1=NUMBER, prefix_2=NUMBER, rest_1=NUMBER, rest_2=NUMBER)
# A change of a key: its row before and after. `step` is the difference to the key's previous version.
CHANGE = _struct(key=TEXT, before=TEXT, after=TEXT, version=NUMBER, position=POSITION, step=NUMBER)
# The state of a key. `row` is null if the key was removed.
KEY_STATE = _struct(order=NUMBER, sequence=NUMBER, version=NUMBER, position=STORED_POSITION, row=TEXT)
MEMBER = _struct(key=TEXT, rank=NUMBER, item=TEXT)
# The state of a group, apart from its members. `candidates` are its first members.
GROUP_STATE = _struct(size=NUMBER, version=NUMBER, position=STORED_POSITION, candidates=ArrayType(MEMBER))
# The top n of a group.
RESULT = _struct(group=TEXT, items=ArrayType(TEXT), version=NUMBER, position=POSITION)
