-- name: category_head
SELECT reservation.category_head(%s)

-- name: reserve_next
SELECT id, stream_name, type, position, global_position, data, metadata, time, key_stream, read,
       duplicates
FROM reservation.reserve_next(
  %(consumer)s, %(category)s, %(partitions)s, %(epochs)s, %(after)s, %(batch_size)s, %(rules)s,
  %(ignoring)s, %(max_bytes)s, %(longest_name)s, %(longest_pause)s)

-- name: read_with_entities
SELECT id, stream_name, type, position, global_position, data, metadata, time, entity_stream
FROM reservation.read_with_entities(
  %s, %s, %s, %s, %s::integer[], %s, %s::bigint[], %s, %s, %s, %s, %s)

-- name: check_unwritten
SELECT reservation.check_unwritten(%s, %s)
