"""What a story consists of: its entries, their kinds, and the differences between messages."""
