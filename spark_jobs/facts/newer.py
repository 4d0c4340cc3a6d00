"""The facts of groups with something new, found without reading the whole log.

What is new is read by ranges. What is older of the same groups is found by the store's own indexes:
the reservations of keys, and the effects beside new ones, by the names of their streams; and what
these follow by its global position. No index leads to older commands that were not reserved.
"""

from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.declaration.table import declarations
from spark_jobs.common.caching import computed
from spark_jobs.common.declaration import Declaration, categories_of
from spark_jobs.facts.codes import KINDS, MessageKind
from spark_jobs.facts.keys import former_streams, with_function_keys
from spark_jobs.facts.reader import Facts
from spark_jobs.snapshot.categories import Categories

_OF_COMMANDS = ("type", "version", "stream_name", "key_stream", "function_data")
_IS_START = f"code % {KINDS} = {MessageKind.START:d}"


def newer(facts: Facts, read: Categories, since: int) -> tuple[DataFrame, DataFrame]:
    """Return the facts from a global position on, and those of what is older of their groups."""
    columns, last = facts.folded, since - 1
    after = dict.fromkeys(categories_of(facts.component), last)
    new = computed(facts.folded_together(after))
    reserved = [*declarations(facts.component).reservation_categories]
    entity = facts.component.name
    named = computed(_key_streams(facts, replace(read, after=after)))
    older = [
        facts.of_streams(named, reserved, columns, last=last),
        facts.of_streams(named, [entity], columns, last=last).where(_IS_START),
    ]
    follows = new.where(F.col("cause").between(1, last))
    (first,) = follows.agg(F.min("cause")).collect()[0]
    if first is not None:
        at = follows.select(F.col("position").alias("global_position"))
        streams = read.at(at, [*reserved, entity], ["stream_name"]).distinct()
        beside = facts.of_streams(streams, [*reserved, entity], columns, first=first, last=last)
        older.append(beside)
    known = computed(reduce(DataFrame.unionByName, older))
    causes = new.unionByName(known).where(F.col("cause").between(1, last))
    asked = facts.at(causes.select(F.col("cause").alias("position")).distinct(), columns)
    return new, known.unionByName(asked).dropDuplicates(["position"])


def _key_streams(facts: Facts, read: Categories) -> DataFrame:
    """Return the streams that the keys of commands name, and those that they named before."""
    category = declarations(facts.component).command_category
    commands = read([category], _OF_COMMANDS)
    declaration, of = Declaration.of(facts.component), (facts.app, facts.app_dir)
    named = with_function_keys(commands, declaration, *of).select("key_stream")
    if declaration.renamed:
        former = former_streams(*of)
        named = named.unionByName(commands.select(former.alias("key_stream")))
    return named.where("key_stream IS NOT NULL").distinct()
