"""Work on a whole store beside the handling of messages: pruning, moving from Eventide, and checks."""
