-- Functions whose arguments have changed: they can end a batch at a number of bytes.
DROP FUNCTION IF EXISTS reservation.read_part(
  text, bigint, bigint, bigint, integer[], integer, bigint[]);
DROP FUNCTION IF EXISTS reservation.read_commands(
  text, bigint, bigint, bigint, integer[], integer, bigint[], jsonb);
