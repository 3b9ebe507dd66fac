"""`python -m jaxalign` is the command `jaxalign`."""

import sys

from jaxalign.cli import main

sys.exit(main())
