"""The story of a command: all that a store holds of it, from any text that names it, on one line.

`search.recognizing` says what a text is taken for, `search.following` finds what belongs together,
`telling` puts it into an order. Everything is read in one snapshot, by an auditor's rights, through
indexes or within stated bounds.
"""
