"""A read model with tables of many types, for what compares their rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import Connection

from reservation import ReadContext, ReadModel

ROOT = Path(__file__).parents[2]
APP = "tests.apps.typed_rows:model"
SEEN = "seen"


@dataclass(frozen=True)
class Seen:
    n: int


model = ReadModel("typed", version=1)


@model.tables
def tables(connection: Connection[Any]) -> None:
    connection.execute("CREATE TYPE kind AS ENUM ('one', 'two')")
    connection.execute(
        'CREATE TABLE "many % types" ('
        " id int PRIMARY KEY, digits numeric, at timestamptz, day date, more jsonb, kind kind,"
        ' tags text[], share float8, "key" text, digest bytea)'
    )
    connection.execute(
        "CREATE TABLE composite (kind kind, name text, amount numeric, value int,"
        " PRIMARY KEY (kind, name, amount))"
    )
    connection.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, value text) PARTITION BY RANGE (id)"
    )
    connection.execute("CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (50)")
    connection.execute("CREATE TABLE high PARTITION OF parts DEFAULT")
    connection.execute("CREATE TABLE nothing (id serial PRIMARY KEY)")
    connection.execute("CREATE FUNCTION one() RETURNS kind LANGUAGE sql RETURN 'one'::kind")
    connection.execute("CREATE VIEW ones AS SELECT one() FROM nothing")


@model.handle(Seen, category=SEEN)
def seen(event: Seen, context: ReadContext) -> None:
    connection, n = context.connection, event.n
    connection.execute(
        'INSERT INTO "many %% types" VALUES (%(n)s, 1.50 * %(n)s,'
        " timestamptz '2026-01-01 00:00:00Z' + %(n)s * interval '1 hour',"
        " date '2026-01-01' + %(n)s, jsonb_build_object('n', %(n)s::int), 'one',"
        " ARRAY['a', 'b'], 0.1 * %(n)s, 'k', 'x')",
        {"n": n},
    )
    connection.execute("INSERT INTO composite VALUES ('two', %s, %s, 1)", [f"é.{n}.0", n])
    connection.execute("INSERT INTO parts VALUES (%s, 'v')", [n])
