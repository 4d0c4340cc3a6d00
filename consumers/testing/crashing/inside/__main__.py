"""Run as ``python -m consumers.testing.crashing.inside`` by the crash kit."""

from consumers.testing.crashing.inside.host import main

if __name__ == "__main__":
    main()
