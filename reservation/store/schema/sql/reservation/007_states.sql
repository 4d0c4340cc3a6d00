-- The versions of states, in streams of their own beside the log: gapless positions from 0, an
-- expected version for each, and never changed but for the mark. They are no messages, because they
-- are removed after a while, and nothing is ever removed from the log.
--
-- `message_id`, `category` and `global_position` name the message that made the version. `base` is the
-- position of the version that holds the whole state which this one builds on, its own if it holds
-- the whole. The texts are kept as they were written: jsonb would bring the keys of a mapping into
-- another order, and a handler that goes through them would then do something else.

CREATE TABLE reservation.states (
  stream_name text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  message_id uuid NOT NULL,
  category text NOT NULL,
  global_position bigint NOT NULL,
  base bigint NOT NULL,
  state json NOT NULL,
  given json NOT NULL,
  outputs json NOT NULL,
  outputs_hash text NOT NULL,
  published boolean NOT NULL DEFAULT false,
  time timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (stream_name, position)
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX states_message ON reservation.states (message_id, stream_name);

-- What was removed: for each stream, under the category of the messages that made the versions, the
-- highest of their global positions.

CREATE TABLE reservation.state_horizons (
  stream_name text COLLATE "C" NOT NULL PRIMARY KEY,
  expired jsonb NOT NULL
);
