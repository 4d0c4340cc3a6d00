-- name: pause
-- No row if it is paused already.
INSERT INTO reservation.pauses (component, category, type, entity, reason, on_behalf_of)
VALUES (%(component)s, %(category)s, %(type)s, %(entity)s, %(reason)s, %(on_behalf_of)s)
ON CONFLICT DO NOTHING
RETURNING component, category, type, entity, reason, coalesce(on_behalf_of, paused_by), paused_at

-- name: resume
DELETE FROM reservation.pauses
WHERE component = %(component)s AND (
  %(every)s OR (category, type, entity)
               IS NOT DISTINCT FROM (%(category)s::text, %(type)s::text, %(entity)s::text))
RETURNING component, category, type, entity, reason, coalesce(on_behalf_of, paused_by), paused_at

-- name: notify
-- Consumers that are at rest read what is paused once they are notified.
SELECT pg_notify('reservation.pauses', '')

-- name: stored
SELECT component, category, type, entity, reason, coalesce(on_behalf_of, paused_by), paused_at
FROM reservation.pauses
WHERE %(component)s::text IS NULL OR component = %(component)s
ORDER BY component, category NULLS FIRST, type NULLS FIRST, entity NULLS FIRST

-- name: categories
SELECT consumer, category FROM reservation.groups ORDER BY consumer, category

-- name: declared
-- What the members of a component's groups declare.
SELECT DISTINCT declaration::text FROM reservation.members
WHERE consumer = %(component)s AND declaration IS NOT NULL

-- name: current
SELECT reservation.pauses_of(%(component)s)

-- name: release
SELECT reservation.release_paused(%(component)s, %(category)s)
