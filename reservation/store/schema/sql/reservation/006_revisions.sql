-- The last revision that each consumer has handled, by entity and by who counts.

CREATE TABLE reservation.revisions (
  consumer text NOT NULL,
  category text NOT NULL,
  entity_stream text NOT NULL,
  source text NOT NULL,
  revision bigint NOT NULL,
  PRIMARY KEY (consumer, category, entity_stream, source)
) WITH (fillfactor = 80);

-- The last revision that was drawn on the senders' side. Drawing locks the row until the transaction
-- ends, so that revisions are in the order of their commits.
CREATE TABLE reservation.revision_counters (
  name text NOT NULL PRIMARY KEY,
  revision bigint NOT NULL
) WITH (fillfactor = 50);
