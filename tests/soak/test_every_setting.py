"""Every setting of a database, in turn: the same commands have the same effects."""

from collections import defaultdict

import psycopg
from psycopg import sql

from tests.store.test_settings import played  # noqa: F401  a fixture

# What has no list of values.
TEXTS = {
    "DateStyle": "SQL, DMY",
    "TimeZone": "Asia/Kathmandu",
    "application_name": "other",
    "backtrace_functions": "write_message",
    "client_encoding": "LATIN1",
    "createrole_self_grant": "set",
    "default_text_search_config": "pg_catalog.simple",
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "restrict_nonsystem_relation_kind": "view, foreign-table",
    "search_path": "nowhere",
    "timezone_abbreviations": "Australia",
    "wal_consistency_checking": "all",
}

_ENDS_ALL = "a limit of a millisecond, which ends each session or statement, a sender's too"
EXCEPTIONS = {
    ("idle_session_timeout", "1"): _ENDS_ALL,
    ("statement_timeout", "1"): _ENDS_ALL,
    ("transaction_timeout", "1"): _ENDS_ALL,
}


def other_values(setting, kind, low, high, values):
    """Return the values of a setting to try."""
    if kind == "bool":
        return ["off" if setting == "on" else "on"]
    if kind == "enum":
        return [value for value in values if value != setting]
    if kind == "string":
        return []
    least, most, now = float(low), float(high), float(setting)
    tried = [n for n in (least, most, now * 2 + 1, 1.0) if least <= n <= most and n != now]
    return list(dict.fromkeys(str(int(n)) if kind == "integer" else repr(n) for n in tried))


def may_be_set(admin, name, value):
    """Return whether a setting can have a value in a session; some are of a transaction."""
    # At once, because some values end a session that waits within a transaction.
    trial = "BEGIN; SAVEPOINT a; SELECT 1; SELECT set_config({}, {}, false); ROLLBACK"
    try:
        admin.execute(sql.SQL(trial).format(sql.Literal(name), sql.Literal(value)))
    except psycopg.Error:
        admin.rollback()
        return False
    return True


def test_no_setting_changes_what_commands_bring_about(admin, played):  # noqa: F811
    """Every value of every setting that a role or a database can have leaves all as it is."""
    rounds = defaultdict(list)
    for name, *known in admin.execute(
        "SELECT name, setting, vartype, min_val, max_val, enumvals FROM pg_settings"
        " WHERE context IN ('user', 'superuser') ORDER BY name"
    ).fetchall():
        values = [TEXTS[name]] if name in TEXTS else other_values(*known)
        for n, value in enumerate(values):
            if (name, value) not in EXCEPTIONS and may_be_set(admin, name, value):
                rounds[n].append((name, value))
    wanted = played([])
    assert wanted == played([])
    assert len(rounds[0]) > 150
    culprits = []

    def search(settings):
        if played(settings) == wanted:
            return
        if len(settings) == 1:
            culprits.extend(settings)
            return
        half = len(settings) // 2
        search(settings[:half])
        search(settings[half:])

    for settings in rounds.values():  # of each setting one value
        for n in range(0, len(settings), 16):
            search(settings[n : n + 16])
    assert culprits == []
