-- A function of version 10 that returns more now.
DROP FUNCTION IF EXISTS reservation.take_part(text, text, bigint, interval);
