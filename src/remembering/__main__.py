"""python -m remembering"""

import sys

from remembering.cli import main

sys.exit(main())
