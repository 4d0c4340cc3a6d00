"""What a run reads: categories in the store and in archives, and single messages by position."""
