"""One adapter for each kind of class that a message or an entity may be of.

All that differs between dataclasses, `msgspec.Struct`s, attrs classes and Pydantic models is in
these modules. `reservation.serialization.fields` chooses the adapter of a class.
"""
