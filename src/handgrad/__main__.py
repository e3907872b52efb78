"""`python -m handgrad`: the command line."""

from handgrad.cli.entry import main

if __name__ == "__main__":
    main()
