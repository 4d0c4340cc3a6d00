-- Stores the report of a reconciliation, and is all that an auditor may write. It runs with the rights of its
-- owner. It adds one row or none: no report is changed or removed, and an id that is there already is left.

CREATE OR REPLACE FUNCTION reservation.store_report(
  id uuid, report jsonb, findings jsonb, accepted jsonb,
  mode text, up_to bigint, duration interval, program text
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
AS $$
#variable_conflict use_variable
DECLARE
  longest CONSTANT bigint := 16 * 1024 * 1024;
  caller text := coalesce(nullif(current_setting('role'), 'none'), session_user);
  counts jsonb;
  at timestamptz;
  size bigint := octet_length(report::text);
BEGIN
  IF id IS NULL OR report IS NULL OR findings IS NULL OR accepted IS NULL THEN
    RAISE invalid_parameter_value USING MESSAGE = 'A report has an id, a content and its counts';
  END IF;
  IF size > longest THEN
    RAISE program_limit_exceeded USING MESSAGE = format(
      'The report has %s bytes, and a report that is stored may have %s', size, longest);
  END IF;
  IF jsonb_typeof(report) <> 'object'
     OR jsonb_typeof(report->'component') IS DISTINCT FROM 'string'
     OR jsonb_typeof(report->'time') IS DISTINCT FROM 'string'
     OR jsonb_typeof(report->'inOrder') IS DISTINCT FROM 'boolean'
     OR jsonb_typeof(report->'categories') IS DISTINCT FROM 'array'
     OR jsonb_typeof(report->'samples') IS DISTINCT FROM 'array'
     OR jsonb_typeof(report->'accepted') IS DISTINCT FROM 'array'
     OR length(report->>'component') NOT BETWEEN 1 AND 1000
     -- PostgreSQL reads words like "yesterday" too, and releases differ in which.
     OR report->>'time' !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$'
     OR length(program) NOT BETWEEN 1 AND 100 THEN
    RAISE invalid_parameter_value USING
      MESSAGE = 'The report is not what `reservation reconcile --json` prints';
  END IF;
  at := (report->>'time')::timestamptz;
  IF at NOT BETWEEN '1970-01-01' AND '9999-01-01' OR duration > interval '10 years' THEN
    RAISE datetime_field_overflow USING MESSAGE = 'The time or the duration of the report is out of range';
  END IF;
  FOREACH counts IN ARRAY ARRAY[findings, accepted] LOOP
    IF jsonb_typeof(counts) <> 'object' OR octet_length(counts::text) > 10000
       OR jsonb_path_exists(counts, '$.* ? (@.type() <> "number" || @ < 0 || @ > 1000000000000000)')
    THEN
      RAISE invalid_parameter_value USING
        MESSAGE = 'The counts of a report are an object of numbers from 0 on';
    END IF;
  END LOOP;

  INSERT INTO reservation.reconciliation_reports (
    id, component, time, stored_by, mode, up_to, categories, duration, in_order, findings, accepted,
    program, report)
  SELECT id, report->>'component', at, caller, mode, up_to,
         ARRAY(
           SELECT DISTINCT c.name #>> '{}'
           FROM unnest(ARRAY[
             '$.categories[*].commandCategory', '$.categories[*].reservationCategory',
             '$.initiations[*].commandCategory', '$.effects[*].category',
             '$.subscriptions[*].category', '$.events.category']::jsonpath[]) AS p(path)
           CROSS JOIN LATERAL jsonb_path_query(report, p.path) AS c(name)
           WHERE jsonb_typeof(c.name) = 'string'
           ORDER BY 1),
         duration, (report->>'inOrder')::boolean, findings, accepted, program, report
  ON CONFLICT DO NOTHING;
END
$$;
