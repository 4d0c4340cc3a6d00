"""What people do with messages that were not handled: find them, retry and discard them."""
