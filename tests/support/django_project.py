"""Django, set up once in a process, with an address that tests set; importing this does it.

Where none is set, as in processes that the crash kit starts, Django has only the connections that
handlers lend it.
"""

import types

import django
from django.conf import settings
from psycopg import conninfo

URLS = types.ModuleType("urls")

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={
        "default": {"ENGINE": "django.db.backends.postgresql", "NAME": None},
        "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    },
    ROOT_URLCONF=URLS,
)
django.setup()


def use(database_url):
    """Let Django use a database from now on."""
    from django.db import connections

    known = conninfo.conninfo_to_dict(database_url)
    connections.settings["default"].update(NAME=known.pop("dbname"), OPTIONS=known)
