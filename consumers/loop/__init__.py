"""The loop of one consumer: batch after batch, attempts, retries and what is logged of them."""
