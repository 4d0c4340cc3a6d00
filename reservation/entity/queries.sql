-- name: read
SELECT stream_name, position, data FROM reservation.read_snapshots(%s, %s)

-- name: write
SELECT reservation.write_snapshots(%s, %s, %s, %s)
