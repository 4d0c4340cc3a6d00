"""``reservation story``: what became of one command, on a terminal."""
