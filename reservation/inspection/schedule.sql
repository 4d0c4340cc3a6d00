-- name: status
-- What is scheduled: how many messages, when the next one is due; how many of them are overdue, and since
-- when the oldest is; how many the log has refused.
SELECT count(*), min(due_at) FILTER (WHERE due_at > now()), count(*) FILTER (WHERE due_at <= now()),
       min(due_at) FILTER (WHERE due_at <= now()), count(*) FILTER (WHERE attempts > 0)
FROM reservation.scheduled
WHERE cancelled_at IS NULL

-- name: list
SELECT id, stream_name, type, due_at, scheduled_at, cancelled_at, attempts, attempt_at, error
FROM reservation.scheduled
WHERE (%(category)s::text IS NULL OR split_part(stream_name, '-', 1) = %(category)s)
  AND (%(cancelled)s OR cancelled_at IS NULL)
ORDER BY due_at, number
LIMIT %(limit)s

-- name: time
SELECT now()
