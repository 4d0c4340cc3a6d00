"""Shared parts of commands: errors, options, extras, tables."""
