"""``reservation console``: the store in a browser.

`command` has the options, `serving` checks what they name and serves, and `application` puts the
pages together. A page is a module in `pages`; what it shows is read in `reading`, and the templates
say how it looks. `console` is what every page is given. `security` decides who may see it.
"""
