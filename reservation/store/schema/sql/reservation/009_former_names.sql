-- A function of version 8 whose arguments have changed.
DROP FUNCTION IF EXISTS reservation.reserve(bigint[], text[], jsonb);
