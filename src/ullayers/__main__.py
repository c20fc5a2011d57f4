"""`python -m ullayers`: the `ul` command."""

import sys

from ullayers.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
