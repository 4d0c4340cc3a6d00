"""The partition of a category that a message is in, as the consumers' groups divide it."""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom


def hashed(stream_name: Column) -> Column:
    """Return the hash of a stream's cardinal id, which decides its partition; null without an id.

    The server has the same as ``hash_64(cardinal_id(stream_name))``.
    """
    begin = F.instr(stream_name, "-")
    ids = F.substr(stream_name, begin + 1)
    cardinal = F.split_part(ids, F.lit("+"), F.lit(1))
    digits = F.substring(F.md5(F.encode(cardinal, "UTF-8")), 1, 16)
    return F.when(begin > 0, F.conv(digits, 16, -10).cast("bigint"))


def position(hashed: Column, positions: Sequence[int]) -> Column:
    """Return the position of the partition that a message is in."""
    number = F.abs(F.coalesce(hashed, F.lit(0)) % len(positions))
    of_each = F.array(*(F.lit(at).cast("bigint") for at in positions))
    return F.get(of_each, number.cast("int"))
