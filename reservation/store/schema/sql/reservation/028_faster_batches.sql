-- No table has changed; the functions that read, write and reserve batches take less time.
SELECT;
