-- How the functions are planned, whatever the planner knows of the log. The indexes have everything in order
-- already; the settings keep the planner from sorting what is left of a category for every batch of it. A plan
-- is made once a session, unless a read is narrowed down: that statement is put together for each call.
--
-- This runs after the functions are made: CREATE OR REPLACE takes away what ALTER has set.

ALTER FUNCTION message_store.stream_version SET enable_seqscan = off SET jit = off;

ALTER FUNCTION message_store.get_stream_messages
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan;

ALTER FUNCTION message_store.get_last_stream_message
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan;

ALTER FUNCTION message_store.get_category_messages
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan SET max_parallel_workers_per_gather = 0;
