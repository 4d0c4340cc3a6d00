"""What runs in the processes that are killed: the component, and what observes its handlers."""
