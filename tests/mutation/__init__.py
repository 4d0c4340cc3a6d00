"""Mutation tests: what is changed in a way to be idempotent must make one of its tests fail."""
