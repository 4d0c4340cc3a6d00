"""What comes and goes over HTTP: the key, requests, answers and problems."""
