"""`python -m ullayers`: the `ul` command."""

from ullayers.cli.main import run

if __name__ == "__main__":
    run()
