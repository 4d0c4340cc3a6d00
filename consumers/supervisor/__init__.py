"""The processes of a component's consumers, their end, their health and their metrics."""
