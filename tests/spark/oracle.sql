-- What `docs/reference/reconciliation.md` says is counted and found, as one query of PostgreSQL over the component of
-- `tests/spark/planting.py`. Nothing here is shared with the jobs: contents, and what they mean today, are
-- compared by jsonb.

-- name: answer
WITH RECURSIVE corrected AS MATERIALIZED (
  -- What each message said whose letter was given other data, and that data.
  SELECT d.category, d.global_position,
         jsonb_build_array(m.type, m.data - v.ignoring) AS former,
         jsonb_build_array(m.type, d.data - v.ignoring) AS corrected,
         m.data AS former_data, d.data AS corrected_data
  FROM reservation.dead_letters d
  JOIN message_store.messages m ON m.global_position = d.global_position AND m.id = d.message_id
  CROSS JOIN LATERAL (SELECT CASE WHEN m.type IN ('Send', 'Post') THEN 'at' ELSE '' END) AS v(ignoring)
  WHERE d.consumer = 'thing' AND d.data IS NOT NULL
), same_meaning(one, other) AS (
  SELECT former, corrected FROM corrected
  UNION SELECT corrected, former FROM corrected
  UNION SELECT former, former FROM corrected
  UNION SELECT corrected, corrected FROM corrected
), linked(one, other) AS (
  SELECT one, other FROM same_meaning
  UNION
  SELECT l.one, s.other FROM linked l JOIN same_meaning s ON s.one = l.other
), meanings AS MATERIALIZED (
  SELECT one AS says, min(other::text) AS meaning FROM linked GROUP BY one
), contents AS (
  -- What each message says, and what it was sent with and given; of a copy, what its command was too.
  SELECT m.global_position, m.type, m.metadata->>'schemaVersion' AS version, m.data
  FROM message_store.messages m
  UNION ALL
  SELECT m.global_position, m.type, m.metadata->>'schemaVersion', v.data
  FROM message_store.messages m
  JOIN corrected c ON c.global_position = m.global_position
                   OR c.global_position::text = m.metadata->>'causationMessageGlobalPosition'
                      AND message_store.category(m.stream_name) = 'sent'
  CROSS JOIN LATERAL (VALUES (c.former_data), (c.corrected_data)) AS v(data)
), meant AS MATERIALIZED (
  -- As they are decoded today, without those that cannot be.
  SELECT d.global_position, jsonb_agg(d.means) FILTER (WHERE d.means IS NOT NULL) AS means
  FROM (
    SELECT m.global_position,
           CASE WHEN jsonb_typeof(m.data->'thingId') = 'string' THEN
             CASE WHEN m.type = 'Open' THEN
                    jsonb_build_array('Open', m.data->'thingId', coalesce(m.data->'amount', '1'))
                  WHEN m.type = 'Count' AND jsonb_typeof(m.data->'key') = 'number' THEN
                    jsonb_build_array('Count', m.data->'thingId', m.data->'key', coalesce(m.data->'amount', '1'))
                  WHEN m.type IN ('Send', 'Post') AND jsonb_typeof(m.data->'key') = 'string' THEN
                    jsonb_build_array(
                      'Send', m.data->'thingId', m.data->'key', coalesce(m.data->'amount', '1'),
                      coalesce(CASE WHEN m.version = '2' THEN m.data->'note' ELSE m.data->'remark' END, '""'))
             END END AS means
    FROM contents m
  ) AS d
  GROUP BY d.global_position
), read AS MATERIALIZED (
  -- Each partition has a position of its own.
  SELECT m.*, message_store.category(m.stream_name) AS category,
         coalesce(m.global_position <= (
           SELECT p.position FROM reservation.positions p JOIN reservation.groups g USING (consumer, category)
           WHERE p.consumer = 'thing' AND p.category = message_store.category(m.stream_name)
             AND p.partition = reservation.partition_of(m.stream_name, g.partitions)), false) AS was_read,
         EXISTS (SELECT FROM reservation.dead_letters d
                 WHERE d.consumer = 'thing' AND d.category = message_store.category(m.stream_name)
                   AND d.global_position = m.global_position
                   AND d.state <> 'handled' AND d.reason <> 'conflict') AS is_letter,
         EXISTS (SELECT FROM reservation.dead_letters d
                 WHERE d.consumer = 'thing' AND d.category = message_store.category(m.stream_name)
                   AND d.global_position = m.global_position
                   AND d.state = 'discarded' AND d.reason <> 'conflict') AS is_discarded,
         EXISTS (SELECT FROM reservation.dead_letters d
                 WHERE d.consumer = 'thing' AND d.category = message_store.category(m.stream_name)
                   AND d.global_position = m.global_position AND d.reason = 'conflict') AS is_recorded,
         coalesce(m.global_position > (
           SELECT g.first_position FROM reservation.groups g
           WHERE g.consumer = 'thing' AND g.category = message_store.category(m.stream_name)), false)
           AS is_watched,
         EXISTS (SELECT FROM corrected c
                 WHERE c.category = message_store.category(m.stream_name)
                   AND c.global_position = m.global_position) AS is_corrected,
         CASE WHEN m.metadata->>'causationMessageGlobalPosition' ~ '^[0-9]+$'
              THEN (m.metadata->>'causationMessageGlobalPosition')::bigint END AS follows,
         -- As it is stored; and as it is decoded today.
         jsonb_build_object(
           'says', jsonb_build_array(
             m.type, m.metadata->'schemaVersion',
             m.data - CASE WHEN m.type IN ('Send', 'Post') THEN 'at' ELSE '' END),
           'means', (SELECT t.means FROM meant t WHERE t.global_position = m.global_position)) AS stored
  FROM message_store.messages m
), said AS MATERIALIZED (
  SELECT r.*, m.says IS NOT NULL AS is_reissue,
         CASE WHEN m.says IS NULL THEN r.stored
              ELSE r.stored || jsonb_build_object(
                'says', jsonb_build_array(m.meaning, r.metadata->'schemaVersion')) END AS content
  FROM read r
  LEFT JOIN meanings m ON m.says = jsonb_build_array(
    r.type, r.data - CASE WHEN r.type IN ('Send', 'Post') THEN 'at' ELSE '' END)
), commands AS (
  SELECT r.*, CASE r.type WHEN 'Open' THEN 'thing' ELSE 'sent' END AS pair,
         -- A text or a whole number, as the class declares it; only the last part may hold a plus.
         CASE WHEN jsonb_typeof(r.data->'thingId') = 'string' AND r.data->>'thingId' <> '' THEN
           CASE WHEN r.type = 'Open' THEN 'thing-' || (r.data->>'thingId')
                WHEN strpos(r.data->>'thingId', '+') > 0 THEN NULL
                WHEN r.type IN ('Send', 'Post') AND jsonb_typeof(r.data->'key') = 'string' AND r.data->>'key' <> ''
                  OR r.type = 'Count' AND jsonb_typeof(r.data->'key') = 'number'
                     AND r.data->>'key' ~ '^-?[0-9]+$'
                THEN 'sent-' || (r.data->>'thingId') || '+' || (r.data->>'key') END END AS key
  FROM said r WHERE r.category = 'thing:command' AND r.type IN ('Open', 'Send', 'Post', 'Count')
), reservations AS (
  SELECT r.*, row_number() OVER (PARTITION BY r.stream_name ORDER BY r.position) AS nth
  FROM said r WHERE r.category = 'sent' AND r.type IN ('Send', 'Post', 'Count')
), started AS (
  SELECT r.* FROM read r
  WHERE r.category = 'thing'
    AND (r.position = 0 OR coalesce(r.metadata->'localProperties'->'first' = to_jsonb(r.position), false))
    AND (r.type <> 'PseudoEvent' OR coalesce(r.data->'initiation' = 'true', false))
), keyed AS (
  SELECT c.*, (r.global_position IS NOT NULL OR s.global_position IS NOT NULL) AS is_reserved,
         -- What the key stands for: its reservation; what the start of the stream follows; or the first.
         CASE WHEN r.global_position IS NOT NULL THEN r.content
              WHEN s.global_position IS NOT NULL THEN (
                SELECT f.content FROM commands f
                WHERE f.global_position = s.follows AND f.key = c.key AND f.pair = c.pair)
              ELSE first_value(c.content) OVER (PARTITION BY c.pair, c.key ORDER BY c.global_position)
         END AS meant,
         row_number() OVER (PARTITION BY c.pair, c.key ORDER BY c.global_position) AS nth,
         -- A key of which any message was corrected.
         bool_or(c.is_corrected) OVER (PARTITION BY c.pair, c.key)
           OR coalesce((SELECT bool_or(x.is_corrected) FROM reservations x
                        WHERE c.pair = 'sent' AND x.stream_name = c.key), false) AS key_corrected
  FROM commands c
  LEFT JOIN reservations r ON c.pair = 'sent' AND r.stream_name = c.key AND r.nth = 1
  LEFT JOIN started s ON c.pair = 'thing' AND s.stream_name = c.key
  WHERE c.key IS NOT NULL
), same AS (
  -- The first stands for the key; if it was discarded, the first that was read and is no letter, if there is one.
  SELECT k.*, min(k.global_position) FILTER (WHERE k.is_same) OVER of_key AS first_same,
         CASE WHEN first_value(k.is_discarded) OVER (PARTITION BY k.pair, k.key, k.is_same ORDER BY k.global_position)
                AND NOT k.is_reserved
              THEN min(k.global_position) FILTER (WHERE k.is_same AND k.was_read AND NOT k.is_letter) OVER of_key
         END AS later_same
  FROM (
    SELECT k.*, coalesce(k.content->'says' = k.meant->'says', false)
                OR EXISTS (SELECT jsonb_path_query(k.content->'means', '$[*]')
                           INTERSECT SELECT jsonb_path_query(k.meant->'means', '$[*]')) AS is_same
    FROM keyed k
  ) AS k
  WINDOW of_key AS (PARTITION BY k.pair, k.key)
), verdicts AS (
  SELECT s.global_position, s.pair, s.key, s.nth, s.is_reserved, s.was_read, s.is_letter, s.is_recorded,
         s.is_watched, s.key_corrected,
         CASE WHEN NOT s.is_same THEN 'conflict'
              WHEN s.global_position <> coalesce(s.later_same, s.first_same) THEN 'duplicate'
              WHEN s.is_reserved THEN 'reserved' WHEN s.is_letter THEN 'dead'
              WHEN s.was_read THEN 'missing' ELSE 'pending' END AS verdict
  FROM same s
  UNION ALL
  SELECT c.global_position, c.pair, NULL, NULL, false, c.was_read, c.is_letter, c.is_recorded, c.is_watched,
         c.is_corrected,
         CASE WHEN NOT c.is_letter AND (c.is_corrected OR c.is_reissue AND c.was_read) THEN 'reserved'
              WHEN c.is_letter THEN 'dead' WHEN c.was_read THEN 'missing' ELSE 'pending' END
  FROM commands c WHERE c.key IS NULL
), mismatched AS (
  SELECT v.* FROM verdicts v
  WHERE v.was_read AND NOT v.key_corrected AND (v.is_recorded AND v.verdict <> 'conflict'
                        OR v.verdict = 'conflict' AND v.is_watched AND NOT v.is_recorded AND NOT v.is_letter)
), orphans AS (
  SELECT r.* FROM reservations r
  WHERE r.nth = 1 AND NOT EXISTS (SELECT FROM commands c WHERE c.pair = 'sent' AND c.key = r.stream_name)
    AND NOT EXISTS (SELECT FROM corrected k WHERE k.global_position = r.follows)
), wrong AS (
  SELECT r.* FROM read r WHERE r.category = 'sent' AND r.type NOT IN ('Send', 'Post', 'Count')
), pairs AS (
  SELECT jsonb_build_object(
    'commands', count(v.*), 'keys', count(DISTINCT v.key),
    'keyless', count(v.*) FILTER (WHERE v.key IS NULL),
    'duplicates', count(*) FILTER (WHERE v.verdict = 'duplicate'),
    'reserved', count(DISTINCT v.key) FILTER (WHERE v.is_reserved)
      + count(v.*) FILTER (WHERE v.key IS NULL AND v.verdict = 'reserved'),
    'corrected', count(DISTINCT v.key) FILTER (WHERE v.key_corrected)
      + count(v.*) FILTER (WHERE v.key IS NULL AND v.key_corrected),
    'missing', count(*) FILTER (WHERE v.verdict = 'missing'),
    'pending', count(*) FILTER (WHERE v.verdict = 'pending'),
    'dead', count(*) FILTER (WHERE v.verdict = 'dead'),
    'conflicts', count(*) FILTER (WHERE v.verdict = 'conflict'),
    'conflict_mismatches', (SELECT count(*) FROM mismatched x WHERE x.pair = p.pair),
    'orphans', CASE p.pair WHEN 'sent' THEN (SELECT count(*) FROM orphans) ELSE 0 END,
    'multiple', CASE p.pair WHEN 'sent' THEN (SELECT count(*) FROM reservations r WHERE r.nth = 2) ELSE 0 END,
    'wrong_type', CASE p.pair WHEN 'sent' THEN (SELECT count(*) FROM wrong) ELSE 0 END
  ) AS counts, p.pair
  FROM (VALUES ('sent'), ('thing')) AS p(pair) LEFT JOIN verdicts v ON v.pair = p.pair
  GROUP BY p.pair
), causes AS (
  SELECT r.*, r.category = 'sent' AND r.type IN ('Send', 'Post', 'Count') AS is_copy,
         EXISTS (SELECT FROM read e WHERE e.category = 'thing' AND e.follows = r.global_position) AS is_followed
  FROM read r WHERE r.category IN ('thing:command', 'sent', 'other')
), subscribed AS (
  SELECT s.global_position,
         CASE WHEN s.is_followed THEN 'handled' WHEN s.is_passed THEN 'passed' WHEN s.is_letter THEN 'dead'
              WHEN NOT s.was_read THEN 'pending' ELSE 'unhandled' END AS verdict
  FROM (
    SELECT c.*,
           EXISTS (SELECT FROM reservation.passes p
                   WHERE p.consumer = 'thing' AND p.category = 'other' AND p.global_position = c.global_position
                     AND p.message_id = c.id
                     AND (p.reason <> 'written' OR p.follower IN (SELECT m.id FROM message_store.messages m)))
             AS is_passed
    FROM causes c
    WHERE c.category = 'other'
      AND CASE WHEN c.type IN ('Heard', 'Noticed') THEN c.global_position >= 12
               WHEN c.type = 'Weighed' THEN true
               ELSE c.type = 'Rung' AND split_part(c.metadata->>'correlationStreamName', '-', 1) = 'thing' END
  ) AS s
), copies AS (
  SELECT c.global_position,
         CASE WHEN c.is_followed THEN 'handled' WHEN c.is_letter THEN 'dead' WHEN NOT c.was_read THEN 'pending'
              ELSE 'unhandled' END AS verdict
  FROM causes c WHERE c.is_copy
), events AS (
  SELECT e.*, e.metadata->>'made' = 'derived' AS is_derived,
         row_number() OVER effect AS nth, first_value(e.metadata->>'made' = 'derived') OVER effect AS first_is
  FROM read e WHERE e.category = 'thing'
    AND (e.type <> 'PseudoEvent' OR coalesce(e.data->'initiation' = 'true', false))
  WINDOW effect AS (PARTITION BY e.follows, e.stream_name, CASE e.type WHEN 'Made' THEN 'Done' ELSE e.type END
                    ORDER BY e.position)
), twice AS (
  -- The events with ids of the framework are one effect, any other is one of its own.
  SELECT e.* FROM events e JOIN causes c ON c.global_position = e.follows
  WHERE e.nth > 1 AND NOT (e.is_derived AND e.first_is)
), lost AS (
  SELECT e.* FROM events e WHERE NOT EXISTS (SELECT FROM causes c WHERE c.global_position = e.follows)
), findings AS (
  SELECT v.verdict AS finding, v.global_position FROM verdicts v WHERE v.verdict IN ('missing', 'conflict')
  UNION ALL SELECT 'conflict-mismatch', x.global_position FROM mismatched x
  UNION ALL SELECT 'orphan', o.global_position FROM orphans o
  UNION ALL SELECT 'multiple', r.global_position FROM reservations r WHERE r.nth > 1
  UNION ALL SELECT 'wrong-type', w.global_position FROM wrong w
  UNION ALL SELECT 'unhandled', c.global_position FROM copies c WHERE c.verdict = 'unhandled'
  UNION ALL SELECT 'unhandled', s.global_position FROM subscribed s WHERE s.verdict = 'unhandled'
  UNION ALL SELECT 'effect-twice', t.global_position FROM twice t
  UNION ALL SELECT 'without-cause', l.global_position FROM lost l
)
SELECT (SELECT counts FROM pairs WHERE pair = 'sent'), (SELECT counts FROM pairs WHERE pair = 'thing'),
       jsonb_build_object(
         'reserved', (SELECT count(*) FROM copies),
         'handled', (SELECT count(*) FROM copies WHERE verdict = 'handled'), 'silent', 0,
         'pending', (SELECT count(*) FROM copies WHERE verdict = 'pending'),
         'unhandled', (SELECT count(*) FROM copies WHERE verdict = 'unhandled'),
         'dead', (SELECT count(*) FROM copies WHERE verdict = 'dead')),
       jsonb_build_object(
         'events', (SELECT count(*) FROM events),
         'causes', (SELECT count(*) FROM causes WHERE is_followed),
         'effect_twice', (SELECT count(DISTINCT follows) FROM twice),
         'without_cause', (SELECT count(*) FROM lost)),
       jsonb_build_object(
         'subscribed', (SELECT count(*) FROM subscribed),
         'handled', (SELECT count(*) FROM subscribed WHERE verdict = 'handled'),
         'passed', (SELECT count(*) FROM subscribed WHERE verdict = 'passed'),
         'pending', (SELECT count(*) FROM subscribed WHERE verdict = 'pending'),
         'unhandled', (SELECT count(*) FROM subscribed WHERE verdict = 'unhandled'),
         'dead', (SELECT count(*) FROM subscribed WHERE verdict = 'dead')),
       (SELECT coalesce(jsonb_agg(jsonb_build_array(f.finding, f.global_position)
                                  ORDER BY f.finding, f.global_position), '[]') FROM findings f)
