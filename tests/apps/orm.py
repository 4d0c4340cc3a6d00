"""Handlers with SQLAlchemy and Django on their batch's connection, and with one of their own."""

from dataclasses import dataclass

from django.db import models
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from reservation import Component, Context
from reservation.strategies import MessageIdInEvents
from tests.support import django_project  # noqa: F401  it sets Django up


class Base(DeclarativeBase):
    """The tables of the team."""


class Shelf(Base):
    __tablename__ = "shelves"
    id: Mapped[str] = mapped_column(primary_key=True)
    books: Mapped[int]


class Book(models.Model):
    id = models.CharField(primary_key=True, max_length=20)
    shelf = models.CharField(max_length=20)

    class Meta:
        app_label = "tests"
        db_table = "books"


def prepare(connection):
    connection.execute(
        "CREATE TABLE shelves (id text PRIMARY KEY, books int NOT NULL);"
        "CREATE TABLE books (id text PRIMARY KEY, shelf text NOT NULL);"
        "CREATE TABLE loans (id uuid PRIMARY KEY)"
    )


@dataclass(frozen=True)
class Count:
    shelf_id: str
    book_id: str


@dataclass(frozen=True)
class Shelve:
    shelf_id: str
    book_id: str


@dataclass(frozen=True)
class Lend:
    shelf_id: str


@dataclass(frozen=True)
class Shelved:
    shelf_id: str
    book_id: str
    books: int


library = Component("library", id="shelf_id")
library.message(Shelved)


@library.handle(Count, once=MessageIdInEvents())
def count(command: Count, entity: None, context: Context) -> Shelved:
    with context.session() as session:
        shelf = session.get(Shelf, command.shelf_id)
        if shelf is None:
            shelf = Shelf(id=command.shelf_id, books=0)
            session.add(shelf)
        shelf.books += 1
        with session.begin_nested():
            session.flush()
    return Shelved(command.shelf_id, command.book_id, shelf.books)


@library.handle(Shelve, once=MessageIdInEvents())
def shelve(command: Shelve, entity: None, context: Context) -> Shelved:
    with context.django():
        book, _ = Book.objects.get_or_create(id=command.book_id, shelf=command.shelf_id)
        books = Book.objects.filter(shelf=book.shelf).count()
    return Shelved(command.shelf_id, command.book_id, books)


loans = Component("loan", id="shelf_id")


@loans.handle(Lend, once=MessageIdInEvents())
async def lend(command: Lend, entity: None, context: Context) -> Shelved:
    async with context.connected() as connection:
        await connection.execute(
            "INSERT INTO loans VALUES (%s) ON CONFLICT DO NOTHING", [context.id()]
        )
    return Shelved(command.shelf_id, "", 0)


loans.message(Shelved)
