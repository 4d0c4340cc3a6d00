-- While somebody holds an old snapshot, each version of an updated row stays, and a search by the key of
-- the row goes through all of them. So the rows that are updated all the time have a generation, which
-- grows with every 32 updates and is the last column of their key: the version that counts is the first
-- from the newest end of the index.

ALTER TABLE reservation.positions
  ADD COLUMN IF NOT EXISTS updates bigint NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0,
  DROP CONSTRAINT positions_pkey,
  ADD PRIMARY KEY (consumer, category, partition, generation);

-- Until when each member lives. Rows of `members` are only added and removed, so they stay few; their
-- `expires_at` is what was written there when the member joined, or by a program of a former version.
CREATE TABLE IF NOT EXISTS reservation.leases (
  member bigint NOT NULL REFERENCES reservation.members ON DELETE CASCADE,
  expires_at timestamptz NOT NULL,
  updates bigint NOT NULL DEFAULT 0,
  generation bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (member, generation)
) WITH (fillfactor = 50);

INSERT INTO reservation.leases (member, expires_at)
SELECT member, expires_at FROM reservation.members
ON CONFLICT DO NOTHING;
