-- Messages of subscribed categories that a component's handler was called for, or would have been, and
-- that no event of its entity followed from. Reconciliation takes a row for the evidence that the
-- message was handled, and a consumer that reads the message again recognizes it.

CREATE TABLE IF NOT EXISTS reservation.passes (
  consumer text NOT NULL,
  category text NOT NULL,
  global_position bigint NOT NULL,
  message_id uuid NOT NULL,  -- a row for another message at this place is of a log that was replaced
  -- nothing: the handler decided on nothing; written: it only wrote messages to other streams;
  -- duplicate: a strategy recognized the message, so the handler was not called
  reason text NOT NULL CHECK (reason IN ('nothing', 'written', 'duplicate')),
  follower uuid,  -- of the reason written: the first message that was written, which the log must hold
  passed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, category, global_position, message_id)
);
