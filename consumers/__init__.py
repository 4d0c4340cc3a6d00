"""The long-running runtime: it reads categories and lets a component handle each message.

The packages, from the top: `supervisor`, `loop`, `batch`, `handling`, `dead_letters`, `group`,
`runtime`. Each imports only from those after it.
"""
