"""The pseudo event: written to an entity's stream for a message that led to no event.

It records that the message was handled, which its metadata says. Projections skip it, consumers
ignore it, and a stream that holds nothing else counts as not started. (Source: the pseudo events of
Richardson, *Microservices Patterns*, 6.1.6.)
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PseudoEvent:
    """Records that a message was handled, and nothing else."""


PSEUDO_EVENT = PseudoEvent.__name__
