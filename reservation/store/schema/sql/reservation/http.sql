-- HTTP requests with an idempotency key, and what they were answered. The functions run with the rights of
-- their owner. Each reaches only the requests of the role that calls, which is the role that SET ROLE
-- named, else the session's user. Of a sender it is the first of the roles in sender_categories that the
-- caller is a member of, so that one program may take turns with several users.
--
-- A session keeps the plan that it made while there were few requests. So none of them scans the table.

CREATE OR REPLACE FUNCTION reservation.http_role() RETURNS oid
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(
    (SELECT r.oid
     FROM reservation.sender_categories c
     JOIN pg_roles r ON r.oid = c.role
     WHERE pg_has_role(caller.name, c.role, 'USAGE')
       AND NOT has_table_privilege(caller.name, 'message_store.messages'::regclass, 'INSERT')
     ORDER BY r.rolname LIMIT 1),
    caller.oid)
  FROM (
    SELECT r.rolname AS name, r.oid
    FROM pg_roles r
    WHERE r.rolname = coalesce(nullif(current_setting('role'), 'none'), session_user)::name
  ) AS caller
$$;

-- A request; no row if there is none of this id.
CREATE OR REPLACE FUNCTION reservation.http_request(
  id uuid,
  OUT fingerprint bytea, OUT parked jsonb, OUT parked_content bytea,
  OUT status smallint, OUT headers jsonb, OUT body bytea
) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT h.fingerprint, h.parked, h.parked_content, h.status, h.headers, h.body
  FROM reservation.http_requests h
  WHERE h.role = reservation.http_role()::regrole AND h.id = http_request.id
$$;

-- Records a request, unless it is recorded already, and returns what is recorded.
CREATE OR REPLACE FUNCTION reservation.begin_http_request(
  id uuid, asked bytea,
  OUT fingerprint bytea, OUT parked jsonb, OUT parked_content bytea,
  OUT status smallint, OUT headers jsonb, OUT body bytea
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  INSERT INTO reservation.http_requests (role, id, fingerprint)
  VALUES (reservation.http_role()::regrole, begin_http_request.id, asked)
  ON CONFLICT DO NOTHING;
  RETURN QUERY SELECT h.* FROM reservation.http_request(begin_http_request.id) h;
END
$$;

-- Records, in a transaction of the application, that it sends a command of a request; they are numbered from 0.
-- Returns whether no transaction did before, and NULL if there is no such request.
CREATE OR REPLACE FUNCTION reservation.send_http_command(id uuid, number integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  UPDATE reservation.http_requests h SET sent = h.sent || number
  WHERE h.role = reservation.http_role()::regrole AND h.id = send_http_command.id AND number <> ALL (h.sent);
  RETURN FOUND OR CASE WHEN reservation.sent_http_commands(send_http_command.id) IS NOT NULL THEN false END;
END
$$;

-- The commands of a request that were sent in transactions of the application; NULL if there is no such request.
CREATE OR REPLACE FUNCTION reservation.sent_http_commands(id uuid) RETURNS integer[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT h.sent
  FROM reservation.http_requests h
  WHERE h.role = reservation.http_role()::regrole AND h.id = sent_http_commands.id
$$;

-- Records the answer, unless there is one already, and returns the one that stands. No row if the request
-- was removed meanwhile.
CREATE OR REPLACE FUNCTION reservation.answer_http_request(
  id uuid, status integer, headers jsonb, body bytea,
  OUT fingerprint bytea, OUT parked jsonb, OUT parked_content bytea,
  OUT stored_status smallint, OUT stored_headers jsonb, OUT stored_body bytea
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  UPDATE reservation.http_requests h
  SET status = answer_http_request.status,
      headers = answer_http_request.headers,
      body = answer_http_request.body,
      answered_at = clock_timestamp(),
      parked = NULL,
      parked_content = NULL
  WHERE h.role = reservation.http_role()::regrole AND h.id = answer_http_request.id AND h.status IS NULL;
  RETURN QUERY SELECT h.* FROM reservation.http_request(answer_http_request.id) h;
END
$$;

-- Keeps a request whose client is sent away, so that it can be answered when the client asks for it.
CREATE OR REPLACE FUNCTION reservation.park_http_request(
  id uuid, parked jsonb, parked_content bytea
) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
  UPDATE reservation.http_requests h
  SET parked = park_http_request.parked, parked_content = park_http_request.parked_content
  WHERE h.role = reservation.http_role()::regrole AND h.id = park_http_request.id
    AND h.status IS NULL AND h.parked IS NULL
$$;
