"""Which ids of events the framework has derived from their cause."""

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

# The entity of a message where only the component's own code says which it is; no stream is named
# so.
ANY = ""


def is_derived(id_: str) -> Column:
    """Return whether the id of an event is one that the framework derives from its cause.

    That is a UUID of version 5 in the namespace of the cause, of an event of the entity itself
    (`followed_id` in `reservation.messages.message`) or of what the handler wrote to the stream of
    another one (`further_id` there). Where a function of the component says which entity a message
    is for, any UUID of version 5 is taken for one of the second kind.
    """
    namespace = F.unhex(F.regexp_replace("cause_id", "-", ""))
    event, line = F.concat("stream_name", F.lit(" ")), F.lit("\n")
    # An id that is neither a text nor a number is written as JSON, mostly in lower case.
    category = F.substring_index("cause_entity", "-", 1)
    small_id = F.lower(
        F.expr("substr(cause_entity, length(substring_index(cause_entity, '-', 1)) + 1)")
    )
    further = [
        F.concat(entity, line, "stream_name", line)
        for entity in (F.col("cause_entity"), F.concat(category, small_id))
    ]

    def derived(name: Column) -> Column:
        digest = F.sha1(F.concat(namespace, F.encode(name, "UTF-8")))
        variant = F.conv(F.substring(digest, 17, 1), 16, 10).cast("int").bitwiseAND(3).bitwiseOR(8)
        return F.concat(
            F.substring(digest, 1, 8),
            F.lit("-"),
            F.substring(digest, 9, 4),
            F.lit("-5"),
            F.substring(digest, 14, 3),
            F.lit("-"),
            F.lower(F.hex(variant)),
            F.substring(digest, 18, 3),
            F.lit("-"),
            F.substring(digest, 21, 12),
        )

    ordinals = F.sequence(F.lit(0), F.col("followers").cast("int") - 1)

    def is_one_of(name: Column) -> Column:
        same = F.exists(ordinals, lambda n: derived(F.concat(name, n.cast("string"))) == F.col(id_))
        return F.coalesce(same, F.lit(False))  # nothing is derived from what is not a UUID

    is_any = (F.col("cause_entity") == ANY) & (F.substring(id_, 15, 1) == "5")
    return reduce(
        Column.__or__, map(is_one_of, (event, *further)), F.coalesce(is_any, F.lit(False))
    )
