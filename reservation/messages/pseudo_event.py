"""What stands in an entity's stream for a message that brought about no event.

It says nothing but that the message was handled, which is in its metadata. Projections leave it
out as they do any type without a projector, consumers pass it over, and a stream that holds nothing
else counts as not started. (Source: the pseudo events of Richardson, *Microservices Patterns*,
6.1.6.)
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PseudoEvent:
    """Records that a message was handled, and nothing else."""


PSEUDO_EVENT = PseudoEvent.__name__
