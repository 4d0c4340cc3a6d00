-- Which categories a role may send to that may not insert into the log itself. A regrole holds the
-- role's oid: a role that is made later, under the name of one that was dropped, is another role.
-- In a dump it is a name, as in the grants that the dump holds.

CREATE TABLE reservation.sender_categories (
  role regrole NOT NULL,
  category text NOT NULL,
  PRIMARY KEY (role, category)
);

-- Functions of version 1 whose arguments have changed.
DROP FUNCTION IF EXISTS
  reservation.write_messages(uuid[], text[], text[], text[], text[], bigint[]),
  reservation.stream_version(text),
  reservation.volatile_fields(jsonb, text);
