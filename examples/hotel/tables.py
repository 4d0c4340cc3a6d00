"""The hotel's own tables, in the database of the message store.

Make them with ``python -m hotel.tables 2026-12-01 365``: the first night, and how many there are.
"""

import os
import sys
from datetime import date, timedelta
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import CheckConstraint, Identity, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase): ...


class Night(Base):
    """One night of one kind of room."""

    __tablename__ = "nights"
    __table_args__ = (CheckConstraint("free >= 0"),)

    room: Mapped[str] = mapped_column(primary_key=True)
    night: Mapped[date] = mapped_column(primary_key=True)
    free: Mapped[int]


class Request(Base):
    """What a guest has asked for."""

    __tablename__ = "requests"

    booking_id: Mapped[str] = mapped_column(primary_key=True)
    guest_id: Mapped[str]
    room: Mapped[str]


class Receipt(Base):
    """What a guest has paid."""

    __tablename__ = "receipts"

    booking_id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Identity())
    cents: Mapped[int]


PRICES = {"single": 9000, "double": 14000, "suite": 30000}
ROOMS = {"single": 3, "double": 2, "suite": 1}


def database() -> dict[str, Any]:
    """Return what engines connect with."""
    return conninfo_to_dict(os.environ.get("RESERVATION_DATABASE_URL", ""))


def make(first: date, nights: int) -> None:
    """Make the tables, and nights from a first one on."""
    engine = create_engine("postgresql+psycopg://", connect_args=database())
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        for day in range(nights):
            for room, free in ROOMS.items():
                session.merge(Night(room=room, night=first + timedelta(days=day), free=free))
    engine.dispose()


if __name__ == "__main__":
    make(date.fromisoformat(sys.argv[1]), int(sys.argv[2]))
