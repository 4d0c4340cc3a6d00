"""Settings of a database under which statements are easily misread or cancelled."""

from typing import Any

from psycopg import Connection, sql

HOSTILE = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "statement_timeout": "250ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "250ms",
    "search_path": "hostile, pg_catalog, public",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "default_transaction_isolation": "serializable",
    "client_encoding": "LATIN1",
    "row_security": "off",
    "xmloption": "document",
    "enable_indexscan": "off",
}
# A consumer may not take what it reads for something else because of these.
NAMES = """
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql RETURN '1970-01-01'::timestamptz;
CREATE FUNCTION hostile.eq(text, text) RETURNS boolean LANGUAGE sql RETURN false;
CREATE OPERATOR hostile.= (FUNCTION = hostile.eq, LEFTARG = text, RIGHTARG = text);
GRANT USAGE ON SCHEMA hostile TO PUBLIC;
"""


def set_otherwise(connection: Connection[Any]) -> None:
    """Set all of them in a database for every later connection."""
    connection.execute(NAMES)
    name = sql.Identifier(connection.info.dbname)
    for setting, value in HOSTILE.items():
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                name,
                sql.Identifier(setting),
                sql.SQL(value) if setting == "search_path" else sql.Literal(value),
            )
        )
