"""``python -P -m cli``: the command line, for those who start it as a process of their own."""

if __name__ == "__main__":
    # The processes of the consumers import this module too, and need none of the commands.
    from cli.starting import main

    main()
