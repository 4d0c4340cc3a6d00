"""Administration of messages that were not handled: find, retry and discard them."""
