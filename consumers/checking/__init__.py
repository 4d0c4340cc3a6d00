"""Comparing a component's declaration with a store before a deployment; nothing here writes."""
