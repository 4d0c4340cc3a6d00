-- name: categories
-- What a component has read, and has letters of.
SELECT category FROM reservation.groups WHERE consumer = %(consumer)s
UNION
SELECT category FROM reservation.leases WHERE consumer = %(consumer)s
UNION
SELECT category FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND (state <> 'handled' OR data IS NULL)
UNION
SELECT category FROM reservation.passes WHERE consumer = %(consumer)s
UNION
SELECT category FROM reservation.revisions WHERE consumer = %(consumer)s
ORDER BY category

-- name: consumers
SELECT DISTINCT consumer FROM reservation.groups ORDER BY consumer LIMIT 20

-- name: live
SELECT DISTINCT process FROM reservation.members
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
  AND NOT reservation.is_gone(member)
ORDER BY process

-- name: open_letters
SELECT count(*) FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
  AND state IN ('waiting', 'parked', 'dead')

-- name: lock
-- Nobody joins until the transaction ends, and who has gone moves no position any more.
SELECT FROM reservation.groups
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
ORDER BY category
FOR UPDATE

-- name: count
SELECT 'positions', count(*) FROM reservation.positions
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
UNION ALL
SELECT 'members', count(*) FROM reservation.members
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
UNION ALL
SELECT 'groups', count(*) FROM reservation.groups
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
UNION ALL
SELECT 'dead letters', count(*) FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
  AND (state <> 'handled' OR data IS NULL)
UNION ALL
SELECT 'decisions about dead letters', count(*) FROM reservation.letter_decisions h
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
  AND NOT EXISTS (SELECT FROM reservation.dead_letters d
                  WHERE (d.consumer, d.category, d.global_position)
                        = (h.consumer, h.category, h.global_position)
                    AND d.state = 'handled' AND d.data IS NOT NULL)
UNION ALL
SELECT 'passes', count(*) FROM reservation.passes
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
UNION ALL
SELECT 'revisions', count(*) FROM reservation.revisions
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
UNION ALL
SELECT 'breakers', count(*) FROM reservation.breakers
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
UNION ALL
SELECT 'pauses', count(*) FROM reservation.pauses
WHERE component = %(consumer)s AND category = ANY (%(categories)s::text[])
UNION ALL
SELECT 'rates', count(*) FROM reservation.rates
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: count_all
SELECT 'processed messages', count(*)
FROM reservation.processed_messages JOIN reservation.processed_handlers h USING (handler)
WHERE h.consumer = %(consumer)s
UNION ALL
SELECT 'handlers of processed messages', count(*) FROM reservation.processed_handlers
WHERE consumer = %(consumer)s
UNION ALL
SELECT 'series', count(*) FROM reservation.series WHERE component = %(consumer)s
UNION ALL
SELECT 'pauses of all that it reads', count(*) FROM reservation.pauses
WHERE component = %(consumer)s AND category IS NULL
UNION ALL
SELECT 'snapshots', count(*) FROM reservation.snapshots
WHERE stream_name ^@ %(stream)s
UNION ALL
SELECT 'versions of states', count(*) FROM reservation.states
WHERE stream_name ^@ %(state)s
UNION ALL
SELECT 'horizons of states', count(*) FROM reservation.state_horizons
WHERE stream_name ^@ %(state)s

-- name: remove_moves
DELETE FROM reservation.moves
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_leases
DELETE FROM reservation.leases
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_members
SELECT reservation.remove_member(member) FROM reservation.members
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_groups
DELETE FROM reservation.groups
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_letters
-- Letters stay whose message was handled with other data than it has: who reads it again handles it so.
DELETE FROM reservation.dead_letters
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
  AND (state <> 'handled' OR data IS NULL)

-- name: remove_letter_decisions
DELETE FROM reservation.letter_decisions h
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])
  AND NOT EXISTS (SELECT FROM reservation.dead_letters d
                  WHERE (d.consumer, d.category, d.global_position)
                        = (h.consumer, h.category, h.global_position))

-- name: remove_passes
DELETE FROM reservation.passes
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_revisions
DELETE FROM reservation.revisions
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_breakers
DELETE FROM reservation.breakers
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_pauses
DELETE FROM reservation.pauses
WHERE component = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_all_pauses
DELETE FROM reservation.pauses WHERE component = %(consumer)s AND category IS NULL

-- name: remove_rates
DELETE FROM reservation.rates
WHERE consumer = %(consumer)s AND category = ANY (%(categories)s::text[])

-- name: remove_all_processed
DELETE FROM reservation.processed_messages p
USING reservation.processed_handlers h
WHERE h.consumer = %(consumer)s AND p.handler = h.handler

-- name: processed_days
SELECT c.relname::text
FROM reservation.processed_handlers h
JOIN pg_inherits i ON i.inhparent = 'reservation.processed_for_a_time'::regclass
JOIN pg_class c ON c.oid = i.inhrelid
WHERE h.consumer = %(consumer)s AND c.relname ~ ('^processed_' || h.handler || '_until_[0-9]{8}$')

-- name: remove_all_processed_handlers
DELETE FROM reservation.processed_handlers WHERE consumer = %(consumer)s

-- name: remove_all_series
DELETE FROM reservation.series WHERE component = %(consumer)s

-- name: remove_all_snapshots
DELETE FROM reservation.snapshots WHERE stream_name ^@ %(stream)s

-- name: remove_all_states
DELETE FROM reservation.states WHERE stream_name ^@ %(state)s

-- name: remove_all_state_horizons
DELETE FROM reservation.state_horizons
WHERE stream_name ^@ %(state)s
