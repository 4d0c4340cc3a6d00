-- The functions are planned by the index that each statement is written for, whatever the planner
-- knows of the tables. With no statistics of a category it would sort the rest of it for every
-- batch, instead of walking the index that has it in order. If it took a category for a large one,
-- it would walk the whole log, or start parallel workers, which takes longer than reading a batch.
--
-- This runs after the functions are made: CREATE OR REPLACE takes away what ALTER has set.
DO $$
DECLARE
  -- A plan that cannot avoid a method that is switched off has a huge estimated cost, for which the server
  -- would compile it. That takes longer than to run it. So does a new plan for each call.
  by_index text[] := ARRAY[
    'enable_seqscan = off', 'enable_bitmapscan = off', 'jit = off', 'plan_cache_mode = force_generic_plan'];
  -- Of what an index has in order only so many rows are wanted. Nothing is read to be sorted.
  in_order text[] := by_index || ARRAY['enable_sort = off', 'max_parallel_workers_per_gather = 0'];
  -- For each of the values given there is one step in an index, instead of a join with the whole table.
  by_key text[] := by_index || ARRAY['enable_hashjoin = off', 'enable_mergejoin = off', 'enable_material = off'];
  one record;
BEGIN
  FOR one IN
    SELECT f.name, string_agg('SET ' || s.setting, ' ') AS settings
    FROM (
      VALUES
        (by_index, ARRAY[
          -- messages at positions, and letters
          'message_at', 'is_foreign', 'rebalance', 'has_open_letter', 'may_have_due_letters',
          'corrected_contents',
          -- rates
          'take_calls', 'forget_rates',
          -- what became of a command
          'first_after', 'message_in', 'asked_command', 'first_event', 'event_of_removed', 'found_outcome',
          -- writing
          'next_position', 'next_positions', 'write_revisions',
          -- scheduled messages
          'cancel_scheduled', 'cancel_sent', 'next_scheduled', 'lock_scheduled', 'forget_scheduled',
          'try_scheduled_singly', 'put_off_scheduled',
          -- series
          'declare_series', 'newest_series', 'stop_series', 'claim_tick', 'send_tick', 'fail_tick',
          -- breakers
          'breaker_states', 'declare_breakers', 'claim_probe', 'breaker_failed', 'breaker_succeeded', 'probe_ended',
          -- pauses
          'pauses_of', 'release_paused',
          -- HTTP requests
          'http_request', 'begin_http_request', 'answer_http_request', 'park_http_request',
          'send_http_command', 'sent_http_commands']),
        (in_order, ARRAY[
          -- the next messages of a category or a stream
          'read_stream', 'read_category', 'read_category_part', 'read_part', 'read_commands', 'keys_of_next',
          'last_message', 'category_head',
          'open_letters', 'first_open_letter', 'parked_heads', 'last_limited',
          'scheduled_categories', 'take_scheduled', 'refused_scheduled']),
        (by_key, ARRAY[
          'read_streams', 'read_with_entities', 'read_snapshots', 'write_snapshots', 'read_revisions',
          'find_new', 'reserve', 'compare_reserved', 'compare_initiations', 'stored_positions',
          'find_processed', 'record_processed', 'handled_before', 'newer_causes', 'look_at_states',
          'check_unwritten',
          'asked_copy', 'asked_open_command', 'insert_scheduled', 'settle_scheduled']),
        -- The functions that they call are taken to cost so much that a plan would be compiled.
        (ARRAY['jit = off'], ARRAY['reserve_next', 'rate_times']),
        -- No two commands have the same content.
        (ARRAY['enable_memoize = off'], ARRAY['keys_of_next', 'read_commands']),
        -- For the last message of a stream a page of the index is gone through, of which an index-only scan
        -- copies every entry of the stream.
        (ARRAY['enable_indexonlyscan = off'], ARRAY['next_positions'])
    ) AS plan(settings, names)
    CROSS JOIN unnest(plan.names) AS f(name)
    CROSS JOIN unnest(plan.settings) AS s(setting)
    GROUP BY f.name
  LOOP
    EXECUTE format('ALTER FUNCTION reservation.%I %s', one.name, one.settings);
  END LOOP;
END
$$;
