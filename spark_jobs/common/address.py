"""The database's address for Spark's workers, without anything secret.

Spark shows its properties in its UI, in event logs and in lists of processes, so an address in a
property holds no password. libpq itself knows which of its keywords are secret.
"""

import os

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

DATABASE_VARIABLE = "RESERVATION_DATABASE_URL"

_FROM_VARIABLES = (b"service", b"host", b"hostaddr", b"port", b"dbname", b"user", b"sslmode")


def address_for_workers(database_url: str) -> str | None:
    """Return the address for workers on other machines, as a connection string.

    Libpq's variables for the server and the role (``PGHOST``, ``PGSERVICE``, …) fill in what the
    address leaves out, because the workers have another environment. Variables that name files of
    this machine do not.
    """
    try:
        given = pq.Conninfo.parse(database_url.encode())
    except psycopg.Error:
        return None
    parts: dict[str, str] = {}
    for option in given:
        value = option.val
        if value is None and option.keyword in _FROM_VARIABLES and option.envvar is not None:
            value = os.environb.get(option.envvar)
        if not value:
            continue
        if is_secret(option):
            return None
        parts[option.keyword.decode()] = value.decode()
    return make_conninfo("", **parts)


def is_secret(option: pq.ConninfoOption) -> bool:
    """Return whether an option of libpq is secret.

    libpq marks secrets with an asterisk, and SCRAM's keys and other debugging options with a D.
    """
    return option.dispchar != b""
