-- name: begin
SELECT fingerprint, parked, parked_content, status, headers, body
FROM reservation.begin_http_request(%s, %s)

-- name: find
SELECT fingerprint, parked, parked_content, status, headers, body
FROM reservation.http_request(%s)

-- name: answer
SELECT fingerprint, parked, parked_content, stored_status, stored_headers, stored_body
FROM reservation.answer_http_request(%s, %s, %s, %s)

-- name: send
SELECT reservation.send_http_command(%s, %s)

-- name: sent
SELECT reservation.sent_http_commands(%s)

-- name: park
SELECT reservation.park_http_request(%s, %s, %s)

-- name: notice_the_end
-- The server soon ends the session of a client whose machine is gone, and with it the locks.
SELECT pg_catalog.set_config('tcp_keepalives_idle', '10', false),
       pg_catalog.set_config('tcp_keepalives_interval', '5', false),
       pg_catalog.set_config('tcp_keepalives_count', '3', false),
       pg_catalog.set_config('idle_session_timeout', '0', false)

-- name: lock
SELECT pg_catalog.pg_try_advisory_lock(%s, %s)

-- name: unlock
SELECT pg_catalog.pg_advisory_unlock(%s, %s)
