-- name: status
-- What is scheduled: how many messages, when the next one is due; how many of them are overdue, and since
-- when the oldest is; how many the log has refused.
WITH pending AS (
  (
    SELECT due_at, false AS refused, false AS dead
    FROM reservation.scheduled
    WHERE cancelled_at IS NULL AND attempt_at IS NULL
    ORDER BY due_at, number
    LIMIT %(most)s
  )
  UNION ALL
  (
    SELECT due_at, true, false
    FROM reservation.scheduled
    WHERE cancelled_at IS NULL AND attempt_at IS NOT NULL AND dead_at IS NULL
    ORDER BY attempt_at, number
    LIMIT %(most)s
  )
  UNION ALL
  (
    SELECT due_at, true, true
    FROM reservation.scheduled
    WHERE cancelled_at IS NULL AND dead_at IS NOT NULL
    ORDER BY due_at, number
    LIMIT %(most)s
  )
)
SELECT count(*), min(due_at) FILTER (WHERE due_at > now()), count(*) FILTER (WHERE due_at <= now()),
       min(due_at) FILTER (WHERE due_at <= now()), count(*) FILTER (WHERE refused),
       count(*) FILTER (WHERE dead)
FROM pending

-- name: list
SELECT id, stream_name, type, due_at, scheduled_at, cancelled_at, attempts, attempt_at, error,
       dead_at
FROM reservation.scheduled
WHERE (%(category)s::text IS NULL OR split_part(stream_name, '-', 1) = %(category)s)
  AND (%(cancelled)s OR cancelled_at IS NULL)
ORDER BY due_at, number
LIMIT %(limit)s

-- name: series
SELECT component, name, expression, zone, missed, reached, last_tick, attempts, attempt_at, error, given_up,
       stopped_at
FROM reservation.series
ORDER BY component, name

-- name: time
SELECT now()
