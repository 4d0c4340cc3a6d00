"""The database's address as Spark's workers may be told it: without anything secret.

Spark shows its properties in its UI, in event logs and in lists of processes, so what is passed on
through one holds no password. libpq itself says which of its keywords are secret.
"""

import os

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

DATABASE_VARIABLE = "RESERVATION_DATABASE_URL"

_FROM_VARIABLES = (b"service", b"host", b"hostaddr", b"port", b"dbname", b"user", b"sslmode")


def address_for_workers(database_url: str) -> str | None:
    """Return the address that workers on other machines can be told, as a connection string.

    What it leaves open and libpq's own variables say here of the server and the role (``PGHOST``,
    ``PGSERVICE``, …) is added, for the workers' environment is another one. Variables that name
    files of this machine are not.

    Args:
        database_url: a libpq URL or connection string; empty for libpq's own defaults.

    Returns:
        The address; None where it holds a secret or cannot be read, so that nothing is passed on
        and the workers' own environment, service file or password file decides.
    """
    try:
        given = pq.Conninfo.parse(database_url.encode())
    except psycopg.Error:
        return None
    told: dict[str, str] = {}
    for option in given:
        value = option.val
        if value is None and option.keyword in _FROM_VARIABLES and option.envvar is not None:
            value = os.environb.get(option.envvar)
        if not value:
            continue
        if is_secret(option):
            return None
        told[option.keyword.decode()] = value.decode()
    return make_conninfo("", **told)


def is_secret(option: pq.ConninfoOption) -> bool:
    """Tell whether libpq calls an option secret.

    It marks secrets with an asterisk, and SCRAM's keys and others for debugging with a D.
    """
    return option.dispchar != b""
