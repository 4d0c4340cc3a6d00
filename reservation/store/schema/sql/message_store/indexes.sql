CREATE UNIQUE INDEX messages_id ON message_store.messages (id);

CREATE UNIQUE INDEX messages_stream ON message_store.messages (stream_name, position);

CREATE INDEX messages_category ON message_store.messages (
  message_store.category(stream_name),
  global_position,
  message_store.category(metadata->>'correlationStreamName')
);
