"""Work on a whole store: pruning, moving from Eventide, and checks before consumers start."""
