"""What a component declares, beside what a store holds: nothing here writes."""
