-- name: in_part
-- Which messages are in a part of a category, by their numbers; as `reservation.read_part` has it.
SELECT m.n
FROM unnest(%(streams)s::text[], %(positions)s::bigint[]) WITH ORDINALITY AS m(stream_name, position, n)
WHERE reservation.is_in_part(
  m.stream_name, m.position, %(partitions)s::integer[], %(size)s, %(former_positions)s::bigint[])
ORDER BY m.n
