"""The SQL of facts, for each category of a component."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psycopg import Connection, sql

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages.message import MAX_POSITION
from reservation.postgres.queries import load_queries
from spark_jobs.facts.codes import Codes, MessageKind, code
from spark_jobs.snapshot.progress import Progress
from spark_jobs.source import columns
from spark_jobs.source.columns import CategoryQuery, ComposedQuery, by_type

# The columns of a fact, with their types in Spark.
FACT = {
    "position": "bigint",  # the global position; of a pass, the negative one of its message
    "code": "int",  # what the message is: see `spark_jobs.facts.codes`
    "key": "bigint",  # of commands and reservations: a hash of pair and key; null without a key
    "digest": "bigint",  # of commands and reserved commands: a hash of what they say
    "cause": "bigint",  # the global position that the message follows
    "kind": "bigint",  # of events: a hash of stream and type
    # The hash of its cardinal id, where partitions differ in what was read; and, in a store without
    # the positions of consumers, where its age decides that, its time.
    "cardinal": "bigint",
    "place": "bigint",  # its position in its stream
    "time": "bigint",  # microseconds since 1970
}
# What the reader makes a key of where only the component's own code can.
OF_CODE = {
    "key_category": "string",
    "function_data": "string",
    "type": "string",
    "version": "string",
    "stream_name": "string",
}

_FACTS = {
    name: text.decode() for name, text in load_queries("spark_jobs.facts", "facts.sql").items()
}
_NULL, _NO_TEXT = sql.SQL("NULL::bigint"), sql.SQL("NULL::text")


@dataclass(frozen=True, slots=True)
class FactsQuery(CategoryQuery):
    """The facts of a category.

    Attributes:
        codes: of the component.
        seed: of the hashes; those of different seeds cannot be compared.
        progress: how far the consumers are, which says where a partition decides whether a message
            was read; None if the facts are stored, and will be compared with any progress.
        by_time: whether the age of a message decides whether it was read.
    """

    codes: Codes = field(kw_only=True)
    seed: int = field(kw_only=True)
    progress: Progress | None = field(kw_only=True)
    by_time: bool = field(kw_only=True, default=False)

    def expressions(self, category: sql.Composable) -> Mapping[str, sql.Composable]:
        """Return the SQL of each of the columns."""
        component = self.codes.component
        declared = declarations(component)
        made = columns.expressions(
            [*_MADE, "time", "canonical", "type", "stream_name"], category, self.declaration
        )
        values = {
            **made,
            "category": category,
            "seed": sql.Literal(self.seed),
            "initiates": sql.Literal(declared.own.initiates),
        }

        def part(name: str, **more: sql.Composable) -> sql.Composable:
            return sql.SQL(_FACTS[name]).format(**{**values, **more})

        def by_types(codes: Mapping[str, int], otherwise: int) -> sql.Composable:
            branches = by_type({name: sql.Literal(one) for name, one in codes.items()})
            return part("code", codes=branches, otherwise=sql.Literal(otherwise))

        parts: dict[str, sql.Composable] = {
            **dict.fromkeys(("key", "digest", "cause", "kind", "cardinal"), _NULL),
            "position": made["global_position"],
            "place": made["position"],
            "time": part("time"),
            **dict.fromkeys(OF_CODE, _NO_TEXT),
        }
        if self.category == declared.command_category:
            parts |= {
                "code": by_types(self.codes.of_commands(), MessageKind.CAUSE),
                "key": part("key_of_command"),
                "digest": part("digest"),
                **{name: made[name] for name in OF_CODE},
            }
        elif self.category == component.name:
            own_names = {name: sql.Literal(own) for name, own in self.declaration.names.items()}
            number = self.codes.pairs.index(component.name) if declared.own.initiates else 0
            parts |= {
                "code": part(
                    "code_of_event",
                    pseudo=sql.Literal(int(MessageKind.PSEUDO)),
                    event=sql.Literal(int(MessageKind.EVENT)),
                    start=sql.Literal(code(MessageKind.START, number)),
                ),
                "key": part("key_of_start"),
                "cause": made["causation"],
                "kind": part("kind", own_names=by_type(own_names)),
            }
        elif self.category in declared.others:
            number = code(MessageKind.SUBSCRIBED, self.codes.subscribed.index(self.category))
            parts["code"] = part(
                "code_of_subscribed",
                subscribed=sql.Literal(number),
                otherwise=sql.Literal(int(MessageKind.CAUSE)),
            )
        else:
            wrong = code(MessageKind.WRONG, self.codes.pairs.index(self.category))
            parts |= {
                "code": by_types(self.codes.of_copies(self.category), wrong),
                "key": part("key_of_stream"),
                "digest": part("digest"),
                "cause": made["causation"],
                **({name: made[name] for name in OF_CODE} if self.declaration.renamed else {}),
            }
        if self.by_time:
            parts["cardinal"] = parts["time"]
        elif asked := _asked(self.category, component, self.progress):
            first, last = map(sql.Literal, asked)
            parts["cardinal"] = part("cardinal", first=first, last=last)
        return {name: parts[name] for name in self.columns}


_MADE = (
    *("global_position", "position", "key_category", "key_stream", "causation", "version"),
    *("starts", "is_first", "is_subscribed", "function_data"),
)


@dataclass(frozen=True, slots=True)
class PassFactsQuery(CategoryQuery):
    """The facts of passes: messages of a category that were handled, and that no event followed.

    The fact of a pass (`reservation.idempotence.passes`) follows the message. Its position is the
    negative of the message's global position, where no message is.

    Attributes:
        consumer: the component's name.
    """

    consumer: str = field(kw_only=True)

    def composed(self, connection: Connection[tuple[object, ...]] | None = None) -> ComposedQuery:
        """Return the SQL, for reads of one range or several."""
        known = {
            "position": sql.SQL("-m.global_position"),
            "cause": sql.SQL("m.global_position"),
            "code": sql.Literal(int(MessageKind.PASS)),
        }
        nothing = {"bigint": _NULL, "string": _NO_TEXT}
        types = {**FACT, **OF_CODE}
        made = {name: known.get(name) or nothing[types[name]] for name in self.columns}
        values = {
            "columns": columns.named(made),
            "consumer": sql.Literal(self.consumer),
            "category": sql.Literal(self.category),
        }
        return ComposedQuery(*columns.around_choice(_FACTS["passes"], values, connection))


def _asked(
    category: str, component: Component, progress: Progress | None
) -> tuple[int, int] | None:
    """Return the range of global positions in which the cardinal ids of a category are needed."""
    if progress is not None:
        return progress.uneven(category)
    return None if category == component.name else (1, MAX_POSITION)
