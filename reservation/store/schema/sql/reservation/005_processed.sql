-- Which messages were processed, so that a repeated message has no second effect. A handler is a
-- consumer's for one type of messages.

-- `keep` is how long it remembers, NULL for ever. What it knew of messages that were stored before
-- `dropped_until` is gone, and those are refused. Its first partition has all days before `since`.
CREATE TABLE reservation.processed_handlers (
  handler integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer text NOT NULL,
  type text NOT NULL,
  keep interval,
  since date,
  dropped_until timestamp,
  UNIQUE (consumer, type)
) WITH (fillfactor = 50);

-- `time` is when the message was stored, in UTC as there, not when it was processed: a redelivery
-- finds the row among those of its own day.
CREATE TABLE reservation.processed_messages (
  handler integer NOT NULL,
  key text NOT NULL,
  time timestamp NOT NULL,
  global_position bigint NOT NULL,
  for_ever boolean NOT NULL
) PARTITION BY LIST (for_ever);

CREATE TABLE reservation.processed_for_ever PARTITION OF reservation.processed_messages (
  PRIMARY KEY (handler, key)
) FOR VALUES IN (true);

-- A partition for each handler and day, named by the handler and the day that it ends at.
CREATE TABLE reservation.processed_for_a_time PARTITION OF reservation.processed_messages (
  PRIMARY KEY (handler, key, time)
) FOR VALUES IN (false) PARTITION BY RANGE (handler, time);
