-- The role that Message DB's clients connect as. Roles belong to the whole server, so another
-- database may have made it already, or be making it at this moment.

DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'message_store') THEN
    CREATE ROLE message_store WITH LOGIN;
  END IF;
EXCEPTION
  WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;

GRANT USAGE ON SCHEMA message_store TO message_store;
GRANT SELECT, INSERT ON message_store.messages TO message_store;
GRANT USAGE, SELECT ON SEQUENCE message_store.messages_global_position_seq TO message_store;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA message_store TO message_store;
GRANT SELECT ON
  message_store.category_type_summary, message_store.type_category_summary,
  message_store.stream_summary, message_store.stream_type_summary,
  message_store.type_stream_summary, message_store.type_summary
TO message_store;
