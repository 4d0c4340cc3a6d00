"""``reservation models verify``: compare the rows of a read model with those of a rebuild."""

import json
from pathlib import Path

import click
from click.core import ParameterSource

from cli.common.archives import archives_option, opener
from cli.common.errors import NOT_IN_ORDER, debug_option
from cli.common.extras import require_extras
from cli.common.lazy import load
from cli.common.options import app_options, database_option, json_option, spark_options
from consumers.read_models.verifying import Verification, check_verifiable, verify
from reservation.app_path import load_component
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed


@click.command("verify")
@app_options
@database_option
@archives_option(
    "Also read this archive, made by `reservation archive`, for messages that were removed from "
    "the store."
)
@click.option(
    "--spark",
    "on_spark",
    is_flag=True,
    help="Compare the rows with Spark, for tables that are too large for one query. The scratch "
    "schema is committed meanwhile. Needs the extra `spark`, and Java 17 or the extra `java`.",
)
@spark_options
@json_option
@click.pass_context
@debug_option
def verify_command(
    context: click.Context,
    app: str,
    app_dir: str,
    database_url: str,
    archives: tuple[Path, ...],
    on_spark: bool,
    master: str,
    remote: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make the tables of the read model APP once more, and compare every row.

    The version that APP declares is made in a scratch schema, from the messages that its consumers
    have handled, in the order of their global positions. Then each table is compared with the live
    one by its primary key: rows that are missing, unexpected, or differ, and in which columns. Dead
    letters are left out, and corrected messages are handled as they were corrected.

    All of it is one transaction, which is rolled back. With --spark, the scratch schema is
    committed until the end, and the next run removes what a killed one has left. Consumers may run
    meanwhile. Columns that do not depend on the events, such as one with a default of now(),
    differ. Needs the rights of a consumer, and that to create a schema.

    Exit status: 0 all rows are the same; 1 some are not, or a handler raised; 2 the command could
    not run.

    \b
    Examples:
      reservation models verify hotel:occupancy
      reservation models verify hotel:occupancy --archive /var/lib/reservation/archive
      reservation models verify hotel:occupancy --spark --conf spark.driver.memory=4g
      reservation models verify hotel:occupancy --json | jq '.tables[] | select(.differing > 0)'
    """
    component = load_component(app, app_dir)
    open_archives = opener(archives)
    archived = None if open_archives is None else open_archives()
    if on_spark:
        require_extras("spark", *(["connect"] if remote else []))
    else:
        _refuse_settings_of_spark(context)
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        check_verifiable(connection, component)  # before Java starts
        result = None if on_spark else verify(connection, component, archived)
    if result is None:
        verify_on_spark = load("cli.spark.execution.verify:verify_on_spark")
        place = app, app_dir, database_url
        result = verify_on_spark(component, *place, archived, master, remote, conf)
    click.echo(json.dumps(_as_json(result)) if as_json else "\n".join(_sentences(result)))
    if not result.is_proved:
        raise click.exceptions.Exit(NOT_IN_ORDER)


def _refuse_settings_of_spark(context: click.Context) -> None:
    """Refuse options that say how Spark runs where it does not."""
    for name in ("master", "remote", "conf"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name} says how Spark runs; give --spark too, or leave it out"
            )


def _sentences(result: Verification) -> list[str]:
    rebuilt = result.rebuilt
    left_out = f", {rebuilt.left_out:,} of them dead letters" if rebuilt.left_out else ""
    lines = [f"{result.schema} was made once more from {rebuilt.messages:,} messages{left_out}."]
    for one in result.tables:
        kinds = [f"{count:,} {kind}" for kind, count in one.counts.items() if count]
        lines.append(f"  {one.table}: {one.rows:,} rows, {', '.join(kinds) or 'all the same'}")
        for row in one.named:
            key = ", ".join(f"{name}={printable(str(value))}" for name, value in row.key.items())
            fields = f" in {', '.join(row.fields)}" if row.fields else ""
            lines.append(f"    {row.kind}{fields}: {key}")
    lines += [f"  {name}: only a rebuild has this table" for name in result.missing_tables]
    lines += [f"  {name}: a rebuild lacks this table" for name in result.unexpected_tables]
    return lines


def _as_json(result: Verification) -> dict[str, object]:
    return {
        "schema": result.schema,
        "proved": result.is_proved,
        "messages": result.rebuilt.messages,
        "leftOut": result.rebuilt.left_out,
        "positions": dict(result.rebuilt.positions),
        "tables": [
            {
                "table": one.table,
                "rows": one.rows,
                **one.counts,
                "samples": [
                    {"key": dict(row.key), "kind": row.kind, "fields": list(row.fields)}
                    for row in one.named
                ],
            }
            for one in result.tables
        ],
        "missingTables": list(result.missing_tables),
        "unexpectedTables": list(result.unexpected_tables),
    }
