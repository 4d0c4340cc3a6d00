-- No table has changed; few messages are taken in fewer round trips.
SELECT;
