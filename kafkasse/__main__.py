import sys

from kafkasse.cli import main

sys.exit(main())
