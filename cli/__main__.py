"""``python -P -m cli``: the command line, for those who start it as a process of their own."""

if __name__ == "__main__":
    from cli.starting import main

    main()
