-- No table has changed; a statement of gathered writes reports on each of them from here on.
SELECT;
