-- name: reserve
SELECT outcome
FROM reservation.reserve(%s::bigint[], %s::text[], %s::jsonb)
ORDER BY ordinal

-- name: compare_initiations
SELECT outcome
FROM reservation.compare_initiations(%s::bigint[], %s::text[], %s::jsonb)
ORDER BY ordinal
