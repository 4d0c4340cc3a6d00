-- name: read
SELECT entity_stream, source, revision FROM reservation.read_revisions(%s, %s, %s, %s)

-- name: write
SELECT reservation.check_recorded(reservation.write_revisions(%s, %s, %s, %s, %s, %s), %s)

-- name: next
SELECT reservation.next_revision(%s)

-- name: forget
DELETE FROM reservation.revisions WHERE consumer = %(consumer)s AND category = %(category)s
