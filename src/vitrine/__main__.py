"""`python -m vitrine` is the `vitrine` command."""

from vitrine.cli import main

if __name__ == "__main__":
    main()
