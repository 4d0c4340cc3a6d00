"""What a handler's declaration must look like, what it is given and what it returned.

Calling handlers is the consumers' work (`consumers.handling`).
"""
