-- The versions by which the schema was upgraded since version 11. Programs look at reservation.versions
-- to see whether the schema is too new for them, so it gets another row only for a change that former
-- programs cannot work with.
CREATE TABLE IF NOT EXISTS reservation.upgrades (
  version integer NOT NULL PRIMARY KEY,
  installed_at timestamptz NOT NULL DEFAULT now()
);

-- What a member's process can read, what it writes and how it makes keys: see ProcessDeclaration in
-- reservation.inspection. NULL if its program does not store that.
ALTER TABLE reservation.members ADD COLUMN IF NOT EXISTS declaration jsonb;
