"""State-based consistent messaging: every version of a state is kept, with what it published."""
