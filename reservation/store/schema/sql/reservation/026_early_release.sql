-- No table has changed; a write that owns its transaction can release its category's lock early.
SELECT;
