-- No table has changed; a message that is written again in another trace says the same from here on.
SELECT;
