"""Which ids of events the framework has derived from their cause."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.postgres.queries import load_queries

# One expression of Spark's SQL, because making a column for each part of it takes long.
_QUERY = load_queries("spark_jobs.analysis.verdicts", "derived_ids.sql")["is_derived"].decode()

# The entity of a message where the component's own code cannot tell it; no stream is named so.
ANY = ""


def is_derived(id_: str) -> Column:
    """Return whether the id of an event is one that the framework derives from its cause.

    That is a UUID of version 5 in the namespace of the cause, of an event of the entity itself
    (`followed_id` in `reservation.messages.message`) or of what the handler wrote to the stream of
    another one (`further_id` there). Where the component's code cannot tell any more which entity a
    message is for, any UUID of version 5 is taken for one of the second kind.
    """
    return F.expr(_QUERY.format(id=id_, any=ANY))
