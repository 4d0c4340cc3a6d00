-- Who asks for the outcome of a command that nothing stands for yet finds its letter by its stream. A name
-- can be longer than an ordered index takes.
CREATE INDEX IF NOT EXISTS dead_letters_of_stream ON reservation.dead_letters USING hash (stream_name);
