"""Reports on a component's declaration and on a store; nothing here writes."""
