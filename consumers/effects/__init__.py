"""The effects of a batch's messages, and the messages that are set aside."""
