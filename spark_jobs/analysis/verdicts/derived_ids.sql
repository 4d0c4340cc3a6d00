-- In Spark's SQL.

-- name: is_derived
-- The names are those of `followed_id` and `further_id`.
coalesce(cause_entity = '{any}' AND substring({id}, 15, 1) = '5', false)
OR coalesce(exists(
  array(
    concat(stream_name, ' '),
    concat(cause_entity, '\n', stream_name, '\n')),
  name -> exists(
    transform(
      sequence(0, cast(followers AS int) - 1),
      n -> sha1(concat(
        unhex(regexp_replace(cause_id, '-', '')),
        encode(concat(name, cast(n AS string)), 'UTF-8')))),
    digest -> {id} = concat(
      substring(digest, 1, 8), '-', substring(digest, 9, 4), '-5', substring(digest, 14, 3), '-',
      lower(hex(cast(conv(substring(digest, 17, 1), 16, 10) AS int) & 3 | 8)),
      substring(digest, 18, 3), '-', substring(digest, 21, 12)))), false)
