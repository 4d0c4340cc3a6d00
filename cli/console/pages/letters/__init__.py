"""The pages about dead letters: the list, each letter, decisions about it and its correction."""
