-- name: store
-- The identity of the store. An operator may read the table, and call no function.
SELECT id FROM reservation.store_identity

-- name: mark
-- Lock a number that nobody else uses, until the transaction ends. Such locks are the database's own.
SELECT pg_advisory_xact_lock(%(number)s)

-- name: is_marked
-- Whether a transaction in this database has locked the number. A replica does not see the locks of its
-- primary.
SELECT pg_is_in_recovery() OR NOT pg_try_advisory_xact_lock(%(number)s)
