-- name: may_store
-- Whether the function is there, whether the role may call it, and whether the server takes writes.
SELECT current_user::text, coalesce(has_function_privilege(
         to_regprocedure(
           'reservation.store_report(uuid, jsonb, jsonb, jsonb, text, bigint, interval, text)'),
         'EXECUTE'), false),
       pg_is_in_recovery()

-- name: store
SELECT reservation.store_report(
  %(id)s, %(report)s::jsonb, %(findings)s::jsonb, %(accepted)s::jsonb, %(mode)s, %(up_to)s,
  %(duration)s, %(program)s)

-- name: older
SELECT r.number, r.component, r.time, r.stored_at, r.stored_by, r.mode, r.up_to, r.categories,
       r.duration, r.in_order, r.findings, r.accepted, r.program
FROM reservation.reconciliation_reports r
WHERE r.component = %(component)s AND r.number < %(edge)s
ORDER BY r.number DESC
LIMIT %(limit)s

-- name: newer
SELECT r.number, r.component, r.time, r.stored_at, r.stored_by, r.mode, r.up_to, r.categories,
       r.duration, r.in_order, r.findings, r.accepted, r.program
FROM reservation.reconciliation_reports r
WHERE r.component = %(component)s AND r.number > %(edge)s
ORDER BY r.number
LIMIT %(limit)s

-- name: one
SELECT r.number, r.component, r.time, r.stored_at, r.stored_by, r.mode, r.up_to, r.categories,
       r.duration, r.in_order, r.findings, r.accepted, r.program, r.report::text
FROM reservation.reconciliation_reports r
WHERE r.number = %(number)s

-- name: components
-- Each is found by a step in the index, with its last report.
WITH RECURSIVE names (component) AS (
  (SELECT r.component FROM reservation.reconciliation_reports r ORDER BY 1 LIMIT 1)
  UNION ALL
  SELECT (SELECT r.component FROM reservation.reconciliation_reports r
          WHERE r.component > n.component ORDER BY 1 LIMIT 1)
  FROM names n WHERE n.component IS NOT NULL
)
SELECT component FROM names WHERE component IS NOT NULL
