"""Faults by SQLSTATE: the one table that every decision about an error of the database uses.

Only two faults count as an attempt at a message: its own, and that of its handler. Every other
error of our own statements is a fault of the environment, also if its state is unknown, and is
waited for. At the commit of a batch an error of a trigger is a message's, because only the effects
of messages can have fired it. Whatever a handler raises is the handler's, so this table does not
apply to it, except for races on the connection of the batch (see
`consumers.calls.handler_call`).
"""

import re
from collections.abc import Iterator
from enum import Enum

import psycopg
from psycopg import errors as pg


class Fault(Enum):
    """The cause of an error.

    Attributes:
        LOST: the connection is lost, or the server is going down.
        RACE: another transaction was first or in the way; the transaction is run again.
        MESSAGE: what the statement carries is refused. Of a statement for a single message, that
            message's.
        ENVIRONMENT: a right, a disk, a sequence, a missing object, a server that takes no writes.
    """

    LOST = "lost"
    RACE = "race"
    MESSAGE = "message"
    ENVIRONMENT = "environment"


# Conditions that our own functions raise, with our schema. The standard and PostgreSQL leave the
# class to others, so a trigger may raise the same.
NOT_MOVED = "RV001"  # a position was moved or taken over by another process, or is of another log
REWRITTEN = "RV002"  # a message is not where it was expected to be, because it was written before
# RV003: a command is in conflict with an earlier one; raised and handled in the server
RECORDED = "RV004"  # another transaction has recorded that it handled some of the messages

_OURS = "RV"

# By the beginning of the SQLSTATE; the longest that fits decides. What is not here is the
# environment': 25006 (read only), 42501 (a missing right), 42883 and 42P01 (a missing function or
# table), 53 (no space, memory or connections left), 57014 (canceled), 58 (system), XX (corrupted).
_FAULTS = {
    "08": Fault.LOST,
    "40003": Fault.LOST,
    "57P": Fault.LOST,
    "40": Fault.RACE,
    "55P03": Fault.RACE,
    "0A": Fault.MESSAGE,
    "22": Fault.MESSAGE,
    "2200H": Fault.ENVIRONMENT,  # a sequence has no more values
    "23": Fault.MESSAGE,
    "54": Fault.MESSAGE,
}
_LENGTHS = (5, 3, 2)

# PostgreSQL's own classes, without those that code in a database raises: 09, 38 and 39 (errors of
# triggers and external routines), 20 and 21 (CASE without a branch, a subquery of several rows), 27
# and 44 (a change that a trigger or a view forbids), P0 (RAISE).
_OF_THE_SERVER = re.compile("0[01238ABFLPZ]|10|2[234568BDF]|3[4BDF]|4[02]|5[34578]|72|F0|HV|XX")

# Classes of errors that can occur wherever a statement is: canceled, out of something, broken.
_ANYWHERE = ("53", "57", "58", "XX")
# The functions that write, in the context of an error, which is in any language.
_WRITING = re.compile(r"\bwrite_(message|messages|each)\(")

# The indexes of the log on what a writer chooses, and the names under which our own functions
# report the same, each with the error that it is. The server gives the name of an index with other
# errors too, such as a name that is too long for it.
_RACE_CONSTRAINTS: dict[str | None, type[psycopg.Error]] = {
    "expected_version": pg.RaiseException,
    "message_id": pg.UniqueViolation,
    "messages_id": pg.UniqueViolation,
    "messages_stream": pg.UniqueViolation,
}

_SCHEMA = "message_store"
_LOG_KEY = "messages_pkey"


def fault_of(error: psycopg.Error) -> Fault:
    """Return whose fault an error of a statement of ours is."""
    if error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
        return Fault.LOST
    if error.sqlstate is None:  # psycopg's own
        return _fault_of_client(error)
    if violates_log_key(error):
        return Fault.ENVIRONMENT
    if race_constraint(error) is not None:
        return Fault.RACE
    return fault_of_state(error.sqlstate)


def fault_at_commit(error: psycopg.Error) -> Fault:
    """Return whose fault it is that a transaction was not committed, in which handlers ran.

    Nothing of ours is deferred to the commit. So an error that code of a database raises, also in a
    class of its own, is that of a trigger which the effects of the messages have fired.
    """
    if error.sqlstate is not None and _OF_THE_SERVER.match(error.sqlstate) is None:
        return Fault.MESSAGE
    return fault_of(error)


def fault_of_state(sqlstate: str) -> Fault:
    """Return whose fault a SQLSTATE stands for."""
    for length in _LENGTHS:
        fault = _FAULTS.get(sqlstate[:length])
        if fault is not None:
            return fault
    return Fault.ENVIRONMENT


def errors_in(error: BaseException) -> Iterator[psycopg.Error]:
    """Give the errors of psycopg that an exception is, wraps or was raised from.

    Django's exceptions have them as causes. SQLAlchemy's do too, and keep them as ``orig``, where
    ``raise … from None`` does not hide them.
    """
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, psycopg.Error):
            yield one
        waiting += [one.__cause__, vars(one).get("orig")]


def races_in(error: BaseException) -> list[psycopg.Error]:
    """Return the lost races among the errors of psycopg that an exception stands for."""
    return [one for one in errors_in(error) if fault_of_state(one.sqlstate or "") is Fault.RACE]


def is_condition(error: psycopg.Error, state: str | None = None) -> bool:
    """Return whether a function of ours has refused a transaction, under one state or any."""
    if error.diag.schema_name != "reservation":
        return False
    return error.sqlstate == state if state else (error.sqlstate or "").startswith(_OURS)


def race_constraint(error: psycopg.Error) -> str | None:
    """Return the index of the log, or the check of our functions, that was violated, if one was.

    A table of somebody else may have a constraint of the same name. The server gives the schema of
    each constraint, and our functions give ours or none.
    """
    diag = error.diag
    expected = _RACE_CONSTRAINTS.get(diag.constraint_name)
    if expected is None or diag.schema_name not in (None, _SCHEMA):
        return None
    return diag.constraint_name if isinstance(error, expected) else None


def may_follow_commit(error: psycopg.Error) -> bool:
    """Return whether a statement that commits within may have committed before its error.

    After the commit nothing can be refused any more, but the statement can be canceled, or the
    server run out of something. Where the write was still under way, the error says so in its
    context.
    """
    if (error.sqlstate or "")[:2] not in _ANYWHERE:
        return False
    return _WRITING.search(error.diag.context or "") is None


def violates_log_key(error: psycopg.Error) -> bool:
    """Return whether a new message was given a global position that another one has.

    The key may have been given another name, and the details are withheld from a role that may not
    read the log, so either is enough.
    """
    diag = error.diag
    if not isinstance(error, pg.UniqueViolation):
        return False
    if (diag.schema_name, diag.table_name) != (_SCHEMA, "messages"):
        return False
    return diag.constraint_name == _LOG_KEY or "(global_position)" in (diag.message_detail or "")


def hides_rows(error: BaseException | None) -> bool:
    """Return whether a policy of row-level security would have hidden rows from a statement.

    Its SQLSTATE is that of a missing right; only its source function distinguishes it, in every
    language.
    """
    if not isinstance(error, pg.InsufficientPrivilege):
        return False
    return error.diag.source_function == "check_enable_rls"


def _fault_of_client(error: psycopg.Error) -> Fault:
    if isinstance(error, psycopg.DataError):
        return Fault.MESSAGE
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return Fault.LOST if lost and not isinstance(error, pg.PipelineAborted) else Fault.ENVIRONMENT
