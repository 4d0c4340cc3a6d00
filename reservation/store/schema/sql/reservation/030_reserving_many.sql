-- No table has changed; many commands are reserved by the statement that reads them. What it returns has
-- changed.
DROP FUNCTION IF EXISTS reservation.reserve_next;
