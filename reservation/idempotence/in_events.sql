-- name: newer_causes
SELECT stream_name, message_id, source, sequence FROM reservation.newer_causes(%s, %s)
