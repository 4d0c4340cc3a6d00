"""Messages' meanings where some were corrected.

A message that was corrected is handled with the data that its dead letter was given. Whatever says
what the message says, or what that data says, means the same. Contents are compared by the digests
that the source makes of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom


class Corrected(NamedTuple):
    """A message that was corrected, so that it was handled with other content.

    Attributes:
        global_position: that of the message.
        type: the message's type.
        former: the digest of its own content.
        corrected: that of the data that its letter was given.
    """

    global_position: int
    type: str
    former: str
    corrected: str


def with_meaning(rows: DataFrame, corrected: Sequence[Corrected]) -> DataFrame:
    """Add what messages mean, where some were corrected.

    Added are ``meant``, a digest that all contents share that mean the same; and ``is_reissue``,
    whether a message says what a corrected one said or was corrected to.
    """
    meanings: list[dict[str, object]] = [
        {"type": type_, "content": content, "meant": meant}
        for (type_, content), meant in _meanings(corrected).items()
    ]
    known = F.broadcast(rows.sparkSession.createDataFrame(pa.Table.from_pylist(meanings)))
    return rows.join(known, ["type", "content"], "left").withColumns(
        {"is_reissue": F.col("meant").isNotNull(), "meant": F.coalesce("meant", "content")}
    )


def _meanings(found: Sequence[Corrected]) -> dict[tuple[str, str], str]:
    """Return for each type and content one that stands for all that mean the same.

    A command may be corrected, and then its copy, so one correction can lead to the next.
    """
    meanings: dict[tuple[str, str], set[str]] = {}
    for one in found:
        same = {one.former, one.corrected}
        for content in list(same):
            same |= meanings.get((one.type, content), set())
        meanings.update({(one.type, content): same for content in same})
    return {known: min(same) for known, same in meanings.items()}
