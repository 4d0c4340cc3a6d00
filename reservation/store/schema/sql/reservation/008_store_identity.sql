-- What distinguishes a store from others, and from what replaced it.

-- Random, made with the schema. A dump and a physical copy keep it, so it does not distinguish a store
-- from one that was restored or cleared; for that, positions and snapshots name the messages they stand at.
CREATE TABLE reservation.store_identity (
  only_row boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (only_row),
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO reservation.store_identity DEFAULT VALUES;

-- The id of the message at `position`; NULL at 0, and where no message of the category is there.
ALTER TABLE reservation.positions ADD COLUMN message_id uuid;

UPDATE reservation.positions p SET message_id = (
  SELECT m.id FROM message_store.messages m
  WHERE m.global_position = p.position AND message_store.category(m.stream_name) = p.category);

-- The same for each position in `carried`.
ALTER TABLE reservation.groups ADD COLUMN carried_ids uuid[];

-- The id of the event at `position`. A snapshot without one, from before, is not read.
ALTER TABLE reservation.snapshots ADD COLUMN event_id uuid;
