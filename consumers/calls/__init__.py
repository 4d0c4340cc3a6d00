"""Calling the code of a component: handlers, and which errors are faults of their messages."""
