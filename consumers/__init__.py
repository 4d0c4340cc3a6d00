"""The long-running runtime: it reads categories and lets a component deal with each message."""
