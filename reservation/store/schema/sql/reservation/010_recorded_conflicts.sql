-- The lowest position that a member of the group ever joined at. Conflicts of messages above it are
-- recorded as dead letters; what lies up to there may have been read by consumers of another kind.
ALTER TABLE reservation.groups ADD COLUMN first_position bigint;

-- Of those that ran before, it is not known where they began.
UPDATE reservation.groups g SET first_position = (
  SELECT min(p.position) FROM reservation.positions p
  WHERE (p.consumer, p.category) = (g.consumer, g.category)
);
