-- Where each consumer is: the global position of the last message of the category that it
-- handled. The epoch counts the processes that have held the row; only the newest may move it.

CREATE TABLE reservation.positions (
  consumer text NOT NULL,
  category text NOT NULL,
  position bigint NOT NULL DEFAULT 0,
  epoch bigint NOT NULL DEFAULT 1,
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, category)
) WITH (fillfactor = 50);
