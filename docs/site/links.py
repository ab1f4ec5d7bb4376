"""Check the links to other sites: `make links`. A link that does not work is an error. The command needs the internet."""

from __future__ import annotations

import sys

from sphinx.cmd import build

from docs.site import pages

SOURCE = pages.ROOT / "build/links-source"
REPORT = pages.ROOT / "build/links"


def main() -> int:
    """Request each link. Returns the exit code."""
    pages.write(SOURCE)
    code = build.main(["-q", "-b", "linkcheck", "-c", str(pages.HERE), str(SOURCE), str(REPORT)])
    sys.stdout.write(f"{REPORT.relative_to(pages.ROOT)}/output.txt lists the links that do not work or redirect.\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
