import sys

from kafkasse.commands import main

sys.exit(main())
