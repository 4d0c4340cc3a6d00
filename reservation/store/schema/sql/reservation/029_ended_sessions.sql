-- No table has changed; who takes partitions over ends the session of a process that hangs.
SELECT;
