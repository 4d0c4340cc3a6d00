"""The HTTP side: the key, requests, answers and problems."""
