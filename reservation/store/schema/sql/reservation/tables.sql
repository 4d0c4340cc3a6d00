-- The tables of version 1. Scripts in the folder `migrations` change them for later versions.

-- What the framework adds to a message store, in a schema of its own that can be taken away again.
CREATE SCHEMA reservation;

-- The versions of the schema, from the first; the highest is that which it has.
CREATE TABLE reservation.versions (
  version integer NOT NULL PRIMARY KEY,
  installed_at timestamptz NOT NULL DEFAULT now()
);

-- What distinguishes a store from others: random, made with the schema. A dump and a physical copy keep
-- it, so it does not distinguish a store from one that was restored or cleared; for that, positions and
-- snapshots name the messages they stand at.
CREATE TABLE reservation.store_identity (
  only_row boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (only_row),
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO reservation.store_identity DEFAULT VALUES;

-- Which categories a role may send to that may not insert into the log itself. The empty category stands
-- for the counter of the revisions of all entities. A regrole holds the role's oid: a role that is made
-- later, under the name of one that was dropped, is another role. In a dump it is a name, as in the grants
-- that the dump holds.
CREATE TABLE reservation.sender_categories (
  role regrole NOT NULL,
  category text NOT NULL,
  PRIMARY KEY (role, category)
);

-- Consumers that share a category. A group has a fixed number of partitions, and each message belongs to
-- one of them, by the hash of its stream's cardinal id.
CREATE TABLE reservation.groups (
  consumer text NOT NULL,
  category text NOT NULL,
  partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 1024),
  -- The positions when the number of partitions was last changed, by the partition that a message was in
  -- then, from 0: messages up to there have been handled.
  former_positions bigint[],
  former_position_ids uuid[],  -- of the messages there, as in positions
  -- The lowest position that a member ever joined at. Conflicts of messages above it are recorded as dead
  -- letters; what lies up to there may have been read by consumers of another kind.
  first_position bigint,
  PRIMARY KEY (consumer, category)
);

-- Who may move the position of each partition. The holder is the member that may, nobody if NULL; one that is
-- no longer a member did not release it. The epoch counts the takeovers, and only the holder of the newest
-- may move the position. A row changes when its holder does, and where attempts are counted after a process
-- has died.
CREATE TABLE reservation.leases (
  consumer text NOT NULL,
  category text NOT NULL,
  partition integer NOT NULL DEFAULT 0,
  epoch bigint NOT NULL DEFAULT 1,
  holder bigint,
  attempted bigint,  -- the message that was last handled on its own, noted before that began
  attempts integer NOT NULL DEFAULT 0,  -- how often that was
  PRIMARY KEY (consumer, category, partition)
) WITH (fillfactor = 50);

-- Where each consumer is: the global position of the last message of the category that it handled, for each
-- partition. A move inserts the row `n` + 1 and deletes the row `n`; see the view `positions`.
--
-- A thousand rows are of nobody, for the planner. It would read a table of a few rows as a whole, and with it
-- what an old snapshot keeps of the deleted ones.
CREATE TABLE reservation.moves (
  consumer text NOT NULL,
  category text NOT NULL,
  partition integer NOT NULL DEFAULT 0,
  n bigint NOT NULL DEFAULT 0,
  position bigint NOT NULL DEFAULT 0,
  message_id uuid,  -- of the message at `position`; NULL at 0, and where no message of the category is there
  moved_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, category, partition, n)
);

INSERT INTO reservation.moves (consumer, category, partition)
SELECT '', '', -i FROM generate_series(1, 1000) AS i;

-- The processes that are in a group. Rows are only added and removed, so they stay few. A member is gone
-- once the time of its lease is over, or once its session has ended, which shows by the lock that the
-- session holds.
CREATE TABLE reservation.members (
  member bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer text NOT NULL,
  category text NOT NULL,
  process text NOT NULL,
  worker text NOT NULL,  -- the same for the members of one process, which has one for each category
  joined_at timestamptz NOT NULL DEFAULT now(),
  -- What its process can read, what it writes and how it makes keys: see ProcessDeclaration in
  -- reservation.inspection. NULL until it is stored.
  declaration jsonb,
  -- The member that its process was at first, before it lost a connection: the higher, the later it started.
  first_member bigint
) WITH (fillfactor = 50);

-- Until when each member lives. A renewal inserts and deletes a row as a move does, and a thousand rows are of
-- nobody too.
CREATE TABLE reservation.heartbeats (
  member bigint NOT NULL,
  n bigint NOT NULL DEFAULT 0,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (member, n)
);

INSERT INTO reservation.heartbeats (member, expires_at)
SELECT -i, '-infinity' FROM generate_series(1, 1000) AS i;

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
  state text NOT NULL CHECK (state IN ('waiting', 'parked', 'dead', 'handled', 'discarded')),
  reason text NOT NULL,  -- the kind of error, or parked
  error text,
  digest text,  -- of the traceback: the same for the same fault
  attempts integer NOT NULL DEFAULT 0,
  process text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- What the message is handled with in the place of its own data, written by reservation.retry_with_data alone; and
  -- the decision that gave it, in reservation.letter_decisions, with who gave it, when and why.
  data jsonb,
  correction bigint,
  key_fields text[],  -- of the message's data, which make its key and its entity; NULL if a function does
  next_attempt_at timestamptz,  -- of one that is waiting for it
  -- What the component's code raised: the class of the exception, and the deepest place in the component's
  -- own code. Its text and its traceback are there if the consumers are started with --errors full, because
  -- they may hold what the message holds.
  error_type text,
  error_place text,
  error_text text,
  error_traceback text,
  rate text,  -- the name of the rate that it waits for, if it does
  PRIMARY KEY (consumer, category, global_position),
  CHECK ((state = 'waiting') = (next_attempt_at IS NOT NULL))
);

CREATE INDEX dead_letters_open ON reservation.dead_letters (consumer, category, entity, global_position)
WHERE state IN ('waiting', 'parked', 'dead');

CREATE INDEX dead_letters_parked ON reservation.dead_letters (consumer, category, entity, global_position)
WHERE state = 'parked';

CREATE INDEX dead_letters_waiting ON reservation.dead_letters (consumer, category, next_attempt_at)
WHERE state = 'waiting';

CREATE INDEX dead_letters_of_rate ON reservation.dead_letters (consumer, category, rate, next_attempt_at)
WHERE state = 'waiting' AND rate IS NOT NULL;

CREATE INDEX dead_letters_with_data ON reservation.dead_letters (consumer, category, global_position)
WHERE data IS NOT NULL;

-- Whoever looks through all letters reads them in the order of the log.
CREATE INDEX dead_letters_in_order ON reservation.dead_letters (global_position, consumer, category);

-- Who asks for the outcome of a command that nothing stands for yet finds its letter by its stream. A name
-- can be longer than an ordered index takes.
CREATE INDEX dead_letters_of_stream ON reservation.dead_letters USING hash (stream_name);

-- The limits of how often handlers are called; see rates.sql. A rate is a handler's, or that of one value of a field
-- of its messages, of which its name has a hash. A call inserts a row and deletes the one before, as a move does.
-- Without a row there are no calls to be made up for.
CREATE TABLE reservation.rates (
  consumer text NOT NULL,
  category text NOT NULL,
  rate text NOT NULL,
  made_up_at timestamptz NOT NULL,  -- when the calls so far are made up for, so that the whole burst is free
  PRIMARY KEY (consumer, category, rate, made_up_at)
);

-- What people have done with dead letters, and why. Rows are only added. `request` is the same for all
-- letters that were changed at once, and is the caller's: a request that comes twice is known again.
CREATE TABLE reservation.letter_decisions (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer text NOT NULL,
  category text NOT NULL,
  global_position bigint NOT NULL,
  message_id uuid NOT NULL,
  decision text NOT NULL CHECK (decision IN ('retry', 'correct', 'discard')),
  former_state text NOT NULL,
  reason text CHECK (btrim(reason) <> ''),
  on_behalf_of text CHECK (btrim(on_behalf_of) <> ''),  -- whom the caller names as the one who decided
  request uuid NOT NULL,
  decided_by text NOT NULL DEFAULT session_user,
  decided_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX letter_decisions_of ON reservation.letter_decisions (
  consumer, category, global_position, number
);

CREATE INDEX letter_decisions_of_request ON reservation.letter_decisions (request);

-- Messages of subscribed categories that a component's handler was called for, or would have been, and
-- that no event of its entity followed from. Reconciliation takes a row for the evidence that the message
-- was handled, and a consumer that reads the message again recognizes it.
CREATE TABLE reservation.passes (
  consumer text NOT NULL,
  category text NOT NULL,
  global_position bigint NOT NULL,
  message_id uuid NOT NULL,  -- a row for another message at this place is of a log that was replaced
  -- nothing: the handler decided on nothing; written: it only wrote messages to other streams;
  -- duplicate: a strategy recognized the message, so the handler was not called
  reason text NOT NULL CHECK (reason IN ('nothing', 'written', 'duplicate')),
  follower uuid,  -- of the reason written: the first message that was written, which the log must hold
  passed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (consumer, category, global_position, message_id)
);

-- Which messages were processed, so that a repeated message has no second effect. A handler is a
-- consumer's for one type of messages.
CREATE TABLE reservation.processed_handlers (
  handler integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer text NOT NULL,
  type text NOT NULL,
  keep interval,  -- how long it remembers, NULL for ever
  since date,  -- its first partition has all days before
  dropped_until timestamp,  -- what it knew of messages that were stored before is gone; those are refused
  UNIQUE (consumer, type)
) WITH (fillfactor = 50);

-- `time` is when the message was stored, in UTC as there, not when it was processed: a redelivery finds
-- the row among those of its own day.
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

-- The last revision that each consumer has handled, by entity and by who counts.
CREATE TABLE reservation.revisions (
  consumer text NOT NULL,
  category text NOT NULL,
  entity_stream text NOT NULL,
  source text NOT NULL,
  revision bigint NOT NULL,
  PRIMARY KEY (consumer, category, entity_stream, source)
) WITH (fillfactor = 80);

-- The last revision that was drawn on the senders' side. Drawing locks the row until the transaction ends,
-- so that revisions are in the order of their commits.
CREATE TABLE reservation.revision_counters (
  name text NOT NULL PRIMARY KEY,
  revision bigint NOT NULL
) WITH (fillfactor = 50);

-- Entities as they were at a position of their streams, so that not all of a long stream has to be read
-- again. Nothing depends on a row: without it the entity is projected from its events.
CREATE TABLE reservation.snapshots (
  stream_name text NOT NULL PRIMARY KEY,
  position bigint NOT NULL,
  revision text NOT NULL,  -- of the code that made it; other code does not read it
  data jsonb NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT now(),
  event_id uuid  -- of the event at `position`; without one a snapshot is not read
) WITH (fillfactor = 80);

-- The versions of states, in streams of their own beside the log: gapless positions from 0, an expected
-- version for each, and never changed. They are no messages, because they are removed
-- after a while, and nothing is ever removed from the log.
--
-- `message_id`, `category` and `global_position` name the message that made the version. `base` is the
-- position of the version that holds the whole state which this one builds on, its own if it holds the
-- whole. The texts are kept as they were written: jsonb would bring the keys of a mapping into another
-- order, and a handler that goes through them would then do something else.
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
  time timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (stream_name, position)
);

CREATE UNIQUE INDEX states_message ON reservation.states (message_id, stream_name);

-- What was removed: for each stream, under the category of the messages that made the versions, the highest
-- of their global positions.
CREATE TABLE reservation.state_horizons (
  stream_name text COLLATE "C" NOT NULL PRIMARY KEY,
  expired jsonb NOT NULL
);

-- Messages that are to be written later. The transaction that writes one to the log removes its row. A row
-- that was cancelled stays, so that scheduling the same again does not bring it back. A message that the log
-- refuses for good is dead.
CREATE TABLE reservation.scheduled (
  id uuid NOT NULL,  -- that of the message
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- A consumer computes with it, and Python holds no later year.
  due_at timestamptz NOT NULL CHECK (due_at >= '1970-01-01 00:00:00+00' AND due_at < '9999-01-01 00:00:00+00'),
  stream_name text NOT NULL,
  type text NOT NULL,
  data jsonb,
  metadata jsonb,
  scheduled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  cancelled_at timestamptz,
  attempts integer NOT NULL DEFAULT 0,
  attempt_at timestamptz,  -- the next attempt to write a message that was refused
  error text,  -- why it was refused
  is_sent boolean NOT NULL DEFAULT false,  -- by a sender: a role that may not insert into the log itself
  dead_at timestamptz  -- when the last attempt to write it failed
);

-- The same id may be scheduled by senders and by others, and by senders of different categories, so that
-- none of them is in the way of another: the log takes the first that is due.
CREATE UNIQUE INDEX scheduled_id ON reservation.scheduled (id, split_part(stream_name, '-', 1), is_sent);

CREATE INDEX scheduled_due ON reservation.scheduled (due_at, number)
WHERE cancelled_at IS NULL AND attempt_at IS NULL;

CREATE INDEX scheduled_refused ON reservation.scheduled (attempt_at, number)
WHERE cancelled_at IS NULL AND attempt_at IS NOT NULL AND dead_at IS NULL;

-- So that many messages to one category do not hold up those to others.
CREATE INDEX scheduled_due_of ON reservation.scheduled (split_part(stream_name, '-', 1), due_at, number)
WHERE cancelled_at IS NULL AND attempt_at IS NULL;

CREATE INDEX scheduled_refused_of ON reservation.scheduled (
  split_part(stream_name, '-', 1), attempt_at, number
) WHERE cancelled_at IS NULL AND attempt_at IS NOT NULL AND dead_at IS NULL;

CREATE INDEX scheduled_dead ON reservation.scheduled (due_at, number)
WHERE cancelled_at IS NULL AND dead_at IS NOT NULL;

-- Recurring commands of components, by the processes that declare them; see series.sql. One that is not declared
-- any more stays, and is stopped.
CREATE TABLE reservation.series (
  component text NOT NULL,
  name text NOT NULL,
  expression text NOT NULL,
  zone text NOT NULL,
  missed text NOT NULL CHECK (missed IN ('latest', 'all', 'none')),
  reached timestamptz NOT NULL,  -- all ticks up to here are sent, missed or given up
  last_tick timestamptz,  -- the last that was sent, or for which there was nothing to send
  attempted timestamptz,  -- the tick that is being sent
  attempts integer NOT NULL DEFAULT 0,  -- how often that was begun
  attempt_at timestamptz,  -- when it may be begun again
  error text,  -- why the last attempt that failed did, until a tick is sent
  given_up bigint NOT NULL DEFAULT 0,  -- how many ticks were given up after attempts that failed
  stopped_at timestamptz,
  PRIMARY KEY (component, name)
) WITH (fillfactor = 50);

-- The breakers of handlers, over all processes; see breakers.sql. Rows of handlers that have none any more are removed.
CREATE TABLE reservation.breakers (
  consumer text NOT NULL,
  category text NOT NULL,
  type text NOT NULL,
  types text[] NOT NULL,  -- all types that the handler's messages are stored under, this one first
  failed_at timestamptz[] NOT NULL DEFAULT '{}',  -- the last failures, as many as open it at most
  succeeded_at timestamptz,  -- of the successes of the handler, the first after each failure is noted
  opened_at timestamptz,  -- NULL if it is closed
  until timestamptz,  -- when a probe may be claimed; while there is one, when the next may be
  is_probing boolean NOT NULL DEFAULT false,
  error_type text,  -- the class of the exception that opened it last
  PRIMARY KEY (consumer, category, type),
  CHECK ((opened_at IS NULL) = (until IS NULL))
) WITH (fillfactor = 50);

-- What people have paused: a component, with all that it reads or one category; or of these the messages of a type,
-- of an entity, or both. A row is removed when it is resumed.
CREATE TABLE reservation.pauses (
  component text NOT NULL,
  category text,
  type text,
  entity text,  -- the entity's stream, as in dead_letters
  reason text NOT NULL CHECK (btrim(reason) <> ''),
  paused_by text NOT NULL DEFAULT session_user,
  on_behalf_of text CHECK (btrim(on_behalf_of) <> ''),  -- whom the caller names as the one who paused
  paused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX pauses_key ON reservation.pauses (
  component, coalesce(category, ''), coalesce(type, ''), coalesce(entity, '')
);

-- What HTTP requests with an idempotency key were answered. The id is made of who asks and of the key, so
-- neither of them is stored. Answers may hold personal data: nobody but the owner and auditors may read
-- the table, and others reach the requests of their own role through functions.
CREATE TABLE reservation.http_requests (
  role regrole NOT NULL,  -- whose request it is
  id uuid NOT NULL,
  fingerprint bytea NOT NULL,  -- of method, target and content
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  sent integer[] NOT NULL DEFAULT '{}',  -- which of its commands were sent in transactions of the application
  -- The request, where a client was sent away before there was an answer; until there is one.
  parked jsonb,
  parked_content bytea,
  -- The answer, once there is one.
  answered_at timestamptz,
  status smallint,
  headers jsonb,
  body bytea,
  PRIMARY KEY (role, id),
  CHECK ((status IS NULL) = (headers IS NULL) AND (status IS NULL) = (body IS NULL))
) WITH (fillfactor = 80);

CREATE INDEX http_requests_created_at ON reservation.http_requests (created_at);

-- What people have decided about findings of reconciliations. Rows are only added, and the last one of a
-- finding counts. Who may insert gives the finding, the decision and the reason; the rest is the server's.
CREATE TABLE reservation.finding_decisions (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  finding text NOT NULL CHECK (finding ~ '^[a-z-]+-[0-9]{1,19}-[0-9a-f]{8}$'),
  is_accepted boolean NOT NULL,
  reason text CHECK (btrim(reason) <> ''),
  decided_by text NOT NULL DEFAULT session_user,
  decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  on_behalf_of text CHECK (btrim(on_behalf_of) <> ''),
  CHECK (reason IS NOT NULL OR NOT is_accepted)
);

CREATE INDEX finding_decisions_of ON reservation.finding_decisions (finding, number);
