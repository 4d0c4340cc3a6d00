"""Stores at each step of an installation, and what their schemas consist of."""

import json

import pytest

from tests.support.commands import invoke_cli

# Everything that schema message_store consists of, and the roles of the server.
FINGERPRINT = """
WITH store AS (SELECT oid FROM pg_namespace WHERE nspname = 'message_store')
SELECT 'schema', nspname::text, nspowner::regrole::text, nspacl::text
FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'
UNION ALL
SELECT 'function', pg_get_functiondef(p.oid), proowner::regrole::text, proacl::text
FROM pg_proc p WHERE pronamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'relation', relname::text || relkind::text, relowner::regrole::text,
       concat_ws(' ', relacl, reloptions, relrowsecurity, relhastriggers,
                 CASE relkind WHEN 'v' THEN pg_get_viewdef(c.oid)
                              WHEN 'i' THEN pg_get_indexdef(c.oid) END)
FROM pg_class c WHERE relnamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'column', attrelid::regclass || '.' || attname, format_type(atttypid, atttypmod),
       concat_ws(' ', attnum, attnotnull, attacl, pg_get_expr(adbin, adrelid))
FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relnamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'constraint', conname::text, conrelid::regclass::text, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'type', typname::text, typowner::regrole::text, typacl::text
FROM pg_type WHERE typnamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'trigger', tgname::text, tgrelid::regclass::text, pg_get_triggerdef(t.oid)
FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
WHERE relnamespace IN (SELECT oid FROM store) AND NOT tgisinternal
UNION ALL
SELECT 'default privileges', defaclrole::regrole::text, defaclobjtype::text, defaclacl::text
FROM pg_default_acl
UNION ALL
SELECT 'role', rolname::text, rolconfig::text,
       concat_ws(' ', rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin)
FROM pg_roles WHERE rolname NOT LIKE 'test\\_%'
UNION ALL
SELECT 'member', roleid::regrole::text, member::regrole::text, admin_option::text
FROM pg_auth_members
ORDER BY 1, 2, 3, 4
"""


@pytest.fixture
def message_db(connection):
    """Give a connection to a database that has Message DB's schema, a message, and none of ours."""
    connection.execute("DROP SCHEMA reservation CASCADE")
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'old-1', 'Old', '{}')"
    )
    return connection


def catalog(connection):
    """Return what the schemas consist of, and their versions."""
    ours = FINGERPRINT.replace("nspname = 'message_store'", "nspname ~ 'message_store|reservation'")
    versions = "SELECT version, installed_at FROM reservation.versions ORDER BY version"
    return connection.execute(ours).fetchall(), connection.execute(versions).fetchall()


def findings(database_url, kind):
    """Return what a check says of a kind of things: how grave it is, its name and its text."""
    env = {"RESERVATION_DATABASE_URL": database_url}
    done = invoke_cli("check", "bank:account", "--json", env=env)
    found = json.loads(done.stdout)["findings"]
    return [(one["severity"], one["name"], one["text"]) for one in found if one["kind"] == kind]
