"""``python -P -m cli``: the command line, for those who start it as a process of their own."""

from cli.main import main

if __name__ == "__main__":
    main(prog_name="reservation")
