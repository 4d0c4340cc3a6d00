"""Trying again: failing messages, dead letters that are due, and transactions that conflict."""
