"""`python -m pdenv`: the same as the `pdenv` command."""

from pdenv.cli import main

if __name__ == "__main__":
    main()
