-- Revisions, where they are drawn and where they are compared.

-- Refuses a name that is not the caller's. A sender may draw for the entities that its categories are of: for
-- account-123 with account:command. The counter of all entities, whose name is empty, is that of the senders
-- that have the empty category. Who may insert into the log may draw under any name.
CREATE OR REPLACE FUNCTION reservation.check_may_draw(name text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
  IF has_table_privilege(caller, 'message_store.messages'::regclass, 'INSERT') OR EXISTS (
    SELECT FROM reservation.sender_categories c
    WHERE pg_has_role(caller, c.role, 'USAGE')
      AND CASE WHEN check_may_draw.name = '' THEN c.category = ''
               ELSE c.category <> '' AND split_part(check_may_draw.name, '-', 1)
                    IN (c.category, split_part(c.category, ':', 1)) END
  ) THEN
    RETURN;
  END IF;
  RAISE insufficient_privilege USING
    MESSAGE = format('The role %s may not draw revisions for %s', caller, CASE
      WHEN check_may_draw.name = '' THEN 'all entities'
      ELSE coalesce(left(check_may_draw.name, 300), 'NULL') END),
    HINT = format('Let the owner of the store run `reservation store grants sender %s`, with --category for '
                  'the commands of the entity, or with --global-revisions.', quote_ident(caller));
END
$$;

-- The next revision under a name. Runs with the rights of the owner, so that a sender may draw and no
-- more. A name's revisions are in the order of the commits, because its row is locked until then; a
-- sequence would give a later number to the transaction that commits first.
CREATE OR REPLACE FUNCTION reservation.next_revision(name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  drawn bigint;
BEGIN
  PERFORM reservation.check_may_draw(next_revision.name);
  INSERT INTO reservation.revision_counters AS c (name, revision)
  VALUES (next_revision.name, 1)
  ON CONFLICT (name) DO UPDATE SET revision = c.revision + 1
  RETURNING c.revision INTO drawn;
  RETURN drawn;
END
$$;

-- The last revisions that a consumer has handled of these entities, by source.
CREATE OR REPLACE FUNCTION reservation.read_revisions(
  consumer text, category text, entity_streams text[], sources text[]
) RETURNS TABLE (entity_stream text, source text, revision bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT i.entity_stream, i.source, found.revision
  FROM unnest(entity_streams, sources) AS i(entity_stream, source)
  CROSS JOIN LATERAL (
    SELECT r.revision FROM reservation.revisions r
    WHERE (r.consumer, r.category, r.entity_stream, r.source)
          = (read_revisions.consumer, read_revisions.category, i.entity_stream, i.source)
    LIMIT 1  -- which has each found by its key, whatever the planner knows
  ) AS found;
END
$$;

-- Raises the last revisions from what was read to what was handled, and returns how many were what was
-- read: the others were raised meanwhile. NULL is read where there is none. In one sorted order, so
-- that two batches do not wait for each other in a circle, and row by row, so that each is found by its
-- key whatever the planner knows.
CREATE OR REPLACE FUNCTION reservation.write_revisions(
  consumer text, category text, entity_streams text[], sources text[], before bigint[],
  revisions bigint[]
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
  one record;
  written bigint := 0;
BEGIN
  FOR one IN
    SELECT i.entity_stream, i.source, i.before, i.revision
    FROM unnest(entity_streams, sources, before, revisions)
      AS i(entity_stream, source, before, revision)
    ORDER BY i.entity_stream COLLATE "C", i.source COLLATE "C"
  LOOP
    IF one.before IS NULL THEN
      INSERT INTO reservation.revisions (consumer, category, entity_stream, source, revision)
      VALUES (write_revisions.consumer, write_revisions.category, one.entity_stream, one.source,
              one.revision)
      ON CONFLICT DO NOTHING;
    ELSE
      UPDATE reservation.revisions r SET revision = one.revision
      WHERE r.consumer = write_revisions.consumer AND r.category = write_revisions.category
        AND r.entity_stream = one.entity_stream AND r.source = one.source
        AND r.revision = one.before;
    END IF;
    IF FOUND THEN
      written := written + 1;
    END IF;
  END LOOP;
  RETURN written;
END
$$;
