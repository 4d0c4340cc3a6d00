"""What several commands share: errors, options, extras, tables."""
