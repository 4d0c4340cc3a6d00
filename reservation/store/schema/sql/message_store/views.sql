-- Counts and percentages of what is stored, by stream, category and type. A category is taken here as the
-- function category does it, which costs more for each row.

CREATE OR REPLACE VIEW message_store.category_type_summary AS
WITH counts AS (
  SELECT split_part(stream_name, '-', 1)::varchar AS category, type, count(*) AS message_count
  FROM message_store.messages GROUP BY 1, 2
)
SELECT category, type, message_count,
       round(100 * message_count / sum(message_count) OVER (), 2) AS percent
FROM counts ORDER BY category, type;

CREATE OR REPLACE VIEW message_store.type_category_summary AS
WITH counts AS (
  SELECT type, split_part(stream_name, '-', 1)::varchar AS category, count(*) AS message_count
  FROM message_store.messages GROUP BY 1, 2
)
SELECT type, category, message_count,
       round(100 * message_count / sum(message_count) OVER (), 2) AS percent
FROM counts ORDER BY type, category;

CREATE OR REPLACE VIEW message_store.stream_summary AS
WITH counts AS (
  SELECT stream_name, count(*) AS message_count FROM message_store.messages GROUP BY 1
)
SELECT stream_name, message_count,
       round(100 * message_count / sum(message_count) OVER (), 2) AS percent
FROM counts ORDER BY stream_name;

CREATE OR REPLACE VIEW message_store.stream_type_summary AS
WITH counts AS (
  SELECT stream_name, type, count(*) AS message_count FROM message_store.messages GROUP BY 1, 2
)
SELECT stream_name, type, message_count,
       round(100 * message_count / sum(message_count) OVER (), 2) AS percent
FROM counts ORDER BY stream_name, type;

CREATE OR REPLACE VIEW message_store.type_stream_summary AS
WITH counts AS (
  SELECT type, stream_name, count(*) AS message_count FROM message_store.messages GROUP BY 1, 2
)
SELECT type, stream_name, message_count,
       round(100 * message_count / sum(message_count) OVER (), 2) AS percent
FROM counts ORDER BY type, stream_name;

CREATE OR REPLACE VIEW message_store.type_summary AS
WITH counts AS (
  SELECT type, count(*) AS message_count FROM message_store.messages GROUP BY 1
)
SELECT type, message_count,
       round(100 * message_count / sum(message_count) OVER (), 2) AS percent
FROM counts ORDER BY type;
