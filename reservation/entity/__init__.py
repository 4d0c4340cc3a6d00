"""Entities: what a stream of events says about one thing."""
