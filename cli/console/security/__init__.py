"""Who may see the console and act in it: sign-in, sessions, and what every answer carries."""
