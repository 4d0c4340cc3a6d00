"""Which statements of a handler would end the transaction of its batch, or outlast it."""

from reservation.postgres.exchange.guarded_cursor import refused_of

REFUSED = {
    "COMMIT": "COMMIT",
    "  end ; ": "END",
    "SELECT 1; rollback": "ROLLBACK",
    "-- all\nABORT": "ABORT",
    "/* a; */START TRANSACTION": "START TRANSACTION",
    "ROLLBACK WORK": "ROLLBACK WORK",
    "SET x = 1": "SET X",
    "SET SESSION x = 1": "SET SESSION",
    "SET LOCAL TRANSACTION READ ONLY": "SET LOCAL",
    "SET LOCAL SESSION AUTHORIZATION x": "SET LOCAL",
    b"DISCARD ALL": "DISCARD ALL",
}
SENT = [
    "ROLLBACK TO SAVEPOINT a",
    "ROLLBACK WORK TO a",
    "SAVEPOINT a; RELEASE a",
    "UPDATE stock SET pieces = 1",
    "SET LOCAL statement_timeout = '1s'",
    "SET CONSTRAINTS ALL DEFERRED",
    "SELECT 'a; COMMIT'",
    "SELECT 'it''s; COMMIT', E'\\'; COMMIT'",
    'SELECT 1 AS "; COMMIT"',
    "DO $$ BEGIN PERFORM 1; END $$",
    "DO $a$ BEGIN PERFORM 1; COMMIT; END $a$",
    "SELECT 1 -- ; COMMIT",
    "SELECT 1 /* ; COMMIT */",
    "SELECT U&'it''s; COMMIT', E'it''s \\'; COMMIT'",
    "PREPARE mine AS SELECT 1; DEALLOCATE mine",
    "",
]


def test_statements_that_end_the_transaction_are_recognized():
    """Also behind others and comments, and not within quotes."""
    assert {text: refused_of(text) for text in REFUSED} == REFUSED
    assert [text for text in SENT if refused_of(text)] == []
