-- Consumers that share a category. A group has a fixed number of partitions, and each message belongs
-- to one of them, by the hash of its stream's cardinal id. A partition has a row of its own in
-- positions. Its holder is the member that may move it; nobody's if NULL. A holder that is
-- no longer a member did not release it itself.

-- `carried` holds the positions when the number of partitions was last changed, by the partition that
-- a message was in then, from 0: messages up to there have been handled.
CREATE TABLE reservation.groups (
  consumer text NOT NULL,
  category text NOT NULL,
  partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 1024),
  carried bigint[],
  PRIMARY KEY (consumer, category)
);

INSERT INTO reservation.groups (consumer, category, partitions)
SELECT consumer, category, 1 FROM reservation.positions;

-- `attempted` is the message that was last handled on its own, noted before that began, and
-- `attempts` is how often that was.
ALTER TABLE reservation.positions
  ADD COLUMN partition integer NOT NULL DEFAULT 0,
  ADD COLUMN holder bigint,
  ADD COLUMN attempted bigint,
  ADD COLUMN attempts integer NOT NULL DEFAULT 0,
  DROP CONSTRAINT positions_pkey,
  ADD PRIMARY KEY (consumer, category, partition);

-- The processes that are in a group. One is gone once its time is over, or once its session has ended,
-- which shows by the lock that the session holds. `partition` is the only one that a member with a
-- fixed part has; NULL for one that takes its fair share.
CREATE TABLE reservation.members (
  member bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer text NOT NULL,
  category text NOT NULL,
  process text NOT NULL,
  partition integer,
  joined_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Messages that a consumer's position passed although they had no effect, and those that were parked
-- behind one of the same entity. Neither is forgotten: the state says what became of each.
CREATE TABLE reservation.dead_letters (
  consumer text NOT NULL,
  category text NOT NULL,
  global_position bigint NOT NULL,
  message_id uuid NOT NULL,
  stream_name text NOT NULL,
  type text NOT NULL,
  entity text,  -- whose later messages are parked behind it; NULL if they are not
  state text NOT NULL CHECK (state IN ('dead', 'parked', 'retry', 'handled', 'discarded')),
  reason text NOT NULL,  -- the kind of error, or parked
  error text,
  digest text,  -- of the traceback: the same for the same fault
  attempts integer NOT NULL DEFAULT 0,
  process text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  changed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, category, global_position)
);

-- A function of version 2 whose arguments have changed.
DROP FUNCTION IF EXISTS reservation.read_commands(text, bigint, bigint, jsonb);

CREATE INDEX dead_letters_open ON reservation.dead_letters (consumer, category, entity, global_position)
  WHERE state IN ('dead', 'parked', 'retry');

CREATE INDEX dead_letters_due ON reservation.dead_letters (consumer, category, entity, global_position)
  WHERE state = 'retry';
