"""What other projects do with as many messages, on the same server and with the same durability."""
