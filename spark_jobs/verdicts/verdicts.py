"""Judge summaries: what is counted of them, and which messages need attention.

The rules are in ``rules.sql``. Where a summary does not say everything, the group's messages are
read again (`spark_jobs.verdicts.rows`), and the same rules are applied to what they say.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs import fold
from spark_jobs.common.caching import computed
from spark_jobs.common.spark_sql import SparkQueries
from spark_jobs.session.settings import having, plan_for
from spark_jobs.snapshot.progress import Progress
from spark_jobs.verdicts import letter_states
from spark_jobs.verdicts.meaning import DIFFERENCES
from spark_jobs.verdicts.rows import OPEN, OpenGroups, Rows

_QUERIES = SparkQueries("spark_jobs.verdicts", "rules.sql")

# The verdicts that are counted; and those that are findings, with the column of their position.
_COUNTED = (
    *("reserved", "dead", "missing", "pending", "orphan", "wrong-type"),
    *("handled", "passed", "silent", "unhandled"),
)
_FOUND = {
    "missing": "first_asked",
    "orphan": "first_answered",
    "wrong-type": "first_asked",
    "unhandled": "first_asked",
    "without-cause": "first_answered",
}
_IS_FOUND = f"verdict IN ({', '.join(map(repr, _FOUND))})"
_IS_CLOSED = (
    "NOT is_open AND NOT is_keyless AND (verdict IN ('reserved', 'handled', 'cause') "
    "OR verdict = 'no command' AND answers % 16 = 8)"
)
_NAMES = ("is_former", "is_key", "is_open", "is_closed", "code", *OPEN)

# What is counted, by code and name.
Counts = dict[int, Counter[str]]


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts.

    Attributes:
        closed: what is counted of groups whose verdicts depend on nothing that consumers do, less
            that of former summaries, by the codes of messages and the names of what is counted.
        others: what is counted of the others.
        findings: a row for each message that needs attention: ``finding``, ``position``, the group
            that it is counted in, and the ``differences`` of a conflict.
        groups: the groups that are not closed, if they are listed.
        plan: Spark's properties for plans of the findings.
    """

    closed: Counts
    others: Counts
    findings: DataFrame
    groups: DataFrame
    plan: Mapping[str, str]

    @property
    def counts(self) -> Counts:
        """The counts of all groups."""
        return added(self.closed, self.others)


def added(one: Counts, other: Counts, sign: int = 1) -> Counts:
    """Return counts with others added to them, or subtracted."""
    total = {code: Counter(numbers) for code, numbers in one.items()}
    for code, numbers in other.items():
        for name, number in numbers.items():
            total.setdefault(code, Counter())[name] += sign * number
    return total


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules, for one run.

    Attributes:
        letter_states: what the consumers did with single messages.
        was_read: the SQL of whether the consumer has read a message.
        lists: whether all groups that are not closed are listed.
    """

    letter_states: DataFrame
    was_read: str
    lists: bool

    def judged(self, groups: DataFrame, is_closed: str = _IS_CLOSED) -> DataFrame:
        """Return judged groups."""
        return _QUERIES(
            "judged",
            {"groups": groups, "letter_states": self.letter_states},
            former=fold.former(groups),
            was_read=self.was_read,
            is_closed=is_closed,
            is_listed="NOT is_closed" if self.lists else f"is_open OR {_IS_FOUND}",
        )


def _counted(judged: DataFrame) -> tuple[Counts, Counts, OpenGroups]:
    """Return the counts of closed groups and of others, and the numbers of open ones."""
    verdicts = ", ".join(
        f"sum(CASE WHEN verdict = '{name}' THEN number ELSE 0 END) AS `{name}`" for name in _COUNTED
    )
    closed, others, open_groups = Counts(), Counts(), OpenGroups()
    former = fold.former(judged)
    for row in _QUERIES("counts", {"judged": judged}, former=former, verdicts=verdicts).collect():
        values = row.asDict()
        if values["is_open"]:
            numbers = open_groups.setdefault(values["is_key"], Counter())
            numbers.update({name: values[name] for name in OPEN})
            continue
        counts = closed if values["is_closed"] else others
        code = _NOTHING if values["code"] is None else values["code"]
        sign = -1 if values.get("is_former") else 1
        numbers = counts.setdefault(code, Counter())
        numbers.update({name: sign * values[name] for name in values if name not in _NAMES})
    return closed, others, open_groups


# The code of a group whose messages give none.
_NOTHING = -1


def judge(summaries: DataFrame, rows: Rows, progress: Progress, *, lists: bool = False) -> Judged:
    """Judge the groups of merged summaries; list those that are not closed if ``lists``."""
    states = letter_states.states_of(summaries.sparkSession, progress)
    rules = _Rules(states, letter_states.was_read(rows.codes, progress.consumed), lists)
    of_all = fold.groups(summaries)
    settled = _QUERIES(
        "settled",
        {
            "groups": of_all,
            "with_letters": rows.with_letters(states, progress),
            "letter_states": states,
        },
        is_now="NOT g.is_former" if fold.former(of_all) else "true",
        keyless_too=str(bool(progress.corrections)).lower(),
    )
    first = computed(rules.judged(settled))
    closed, others, open_groups = _counted(first)
    findings = [_findings(first)]
    found = sum(numbers[name] for numbers in others.values() for name in _FOUND)
    plan = plan_for(found + sum(numbers["number"] for numbers in open_groups.values()))
    if open_groups:
        with having(summaries.sparkSession, plan):
            open_ = _coalesced(first.where("is_open"), plan)
            groups, of_messages = rows.judged(open_, states, progress, rules.was_read, open_groups)
            again = computed(rules.judged(groups, "false"))
            _, of_open, _ = _counted(again)
        others = added(others, of_open)
        findings += [_findings(again), *of_messages]
    if progress.deleted:
        others = added(others, {_NOTHING: Counter(deleted=len(progress.deleted))})
    not_closed = first.where("grp IS NOT NULL AND NOT is_closed").select("is_key", "grp")
    return Judged(closed, others, _coalesced(reduce(_added, findings), plan), not_closed, plan)


def _coalesced(frame: DataFrame, plan: Mapping[str, str]) -> DataFrame:
    """Return few rows in one partition, so that plans need no exchange, and many as they are."""
    return frame.coalesce(1) if plan else frame


def _added(findings: DataFrame, others: DataFrame) -> DataFrame:
    """Return findings of both; only those of keys have differences."""
    return findings.unionByName(others, allowMissingColumns=True)


def _findings(judged: DataFrame) -> DataFrame:
    position = F.coalesce(
        *(F.when(F.col("verdict") == name, F.col(column)) for name, column in _FOUND.items())
    )
    # The events of missing causes are findings of their own.
    has_message = ~((F.col("verdict") == "without-cause") & (F.col("grp") > 0))
    return judged.where(F.expr(_IS_FOUND) & ~F.col("is_open") & has_message).select(
        F.col("verdict").alias("finding"),
        position.alias("position"),
        "grp",
        F.lit(None).cast(DIFFERENCES).alias("differences"),
    )
