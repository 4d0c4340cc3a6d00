-- No table has changed; reservations have the schema version of their commands from here on.
SELECT;
