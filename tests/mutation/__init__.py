"""Mutation tests: a change of a strategy must make one of its tests fail."""
