"""A reference interpreter of components, and what draws components and histories for it."""
