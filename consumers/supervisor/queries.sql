-- name: settings
-- What is read for metrics is not worth a longer wait.
SELECT set_config('statement_timeout', '30s', false)
