"""The code in the processes that are killed: the component, and observers of its handlers."""
