"""`python -m ctxmix_hf` is `ctxmix`."""

import sys

from ctxmix_hf.cli import main

if __name__ == "__main__":
    sys.exit(main())
