"""Checks of declared functions by their annotations, when a component is declared."""
