-- name: may_decide
SELECT current_user::text,
       has_column_privilege('reservation.finding_decisions', 'is_accepted', 'INSERT')

-- name: lock
-- One decision after the other, so that nobody decides on what another has just changed.
SELECT pg_advisory_xact_lock(hashtextextended('reservation.finding_decisions', 0))

-- name: accepted
SELECT last.finding, last.is_accepted, last.reason, last.decided_by, last.decided_at,
       last.on_behalf_of
FROM (
  SELECT DISTINCT ON (d.finding) d.*
  FROM reservation.finding_decisions d
  ORDER BY d.finding, d.number DESC
) AS last
WHERE last.is_accepted
ORDER BY last.number

-- name: history
SELECT d.finding, d.is_accepted, d.reason, d.decided_by, d.decided_at, d.on_behalf_of
FROM reservation.finding_decisions d
ORDER BY d.number

-- name: decide
INSERT INTO reservation.finding_decisions (finding, is_accepted, reason, on_behalf_of)
SELECT f.finding, %(is_accepted)s, %(reason)s::text, %(on_behalf_of)s::text
FROM unnest(%(findings)s::text[]) WITH ORDINALITY AS f(finding, n)
ORDER BY f.n
RETURNING finding, is_accepted, reason, decided_by, decided_at, on_behalf_of
