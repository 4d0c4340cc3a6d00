"""What transaction a message needs: that of its batch, one of its own, or two."""

from consumers.handling.decoding import Decoding
from reservation.component import Component
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage


class TransactionNeeds:
    """The transactions that the messages of one category need.

    Attributes:
        own: the types of messages that are handled here in a transaction of their own.
        two_phase: the types of messages that are handled by a two-phase strategy.
    """

    def __init__(self, component: Component, category: str, decoding: Decoding) -> None:
        """Prepare.

        Args:
            component: whose messages they are.
            category: one that the component reads.
            decoding: what says which messages are handled here.
        """
        self._declared = declared = component.declared_in(category)
        self._decoding = decoding
        self._reserves = category == component.command_category
        copied = set(declared.reservations) - declared.reserves_within if self._reserves else ()
        self.own = frozenset(declared.own_transaction.difference(declared.ignored, copied))
        self.two_phase = frozenset(declared.two_phase).difference(declared.ignored)

    def is_two_phase(self, message: StoredMessage) -> bool:
        """Return whether a message is handled here, by a two-phase strategy.

        Of commands that are reserved within their category, only the copies are handled.
        """
        declared = self._declared
        if message.type not in self.two_phase:
            return False
        if not self._reserves or message.type not in declared.reservations:
            return True
        if message.type not in declared.reserves_within or message.data is None:
            return False
        try:
            decoded = self._decoding.look(message, None)
        except MessageError:
            return False
        return decoded is not None and decoded.entity_stream is not None
