-- name: partitions
SELECT reservation.partition_of(s.name, %(partitions)s)
FROM unnest(%(streams)s::text[]) WITH ORDINALITY AS s(name, n)
ORDER BY s.n
