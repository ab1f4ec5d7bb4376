"""Build the site: `python -m docs.site`. Any warning of Sphinx, such as a broken link, is an error."""

from __future__ import annotations

import shutil
import sys

from sphinx.cmd import build

from docs.site import check, pages, reference

SOURCE = pages.ROOT / "build/site-source"
SITE = pages.ROOT / "build/site"


def main() -> int:
    """Build the site from nothing, so that no page of an earlier build stays. Returns the exit code."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    pages.write(SOURCE)
    options = ["-W", "--keep-going", "-q", "-b", "dirhtml", "-c", str(pages.HERE), "-d", str(SOURCE / ".doctrees")]
    code = build.main([*options, str(SOURCE), str(SITE)])
    names = [page.removesuffix(".md") for page in (*pages.files().values(), *reference.pages())]
    problems = [] if code else [*check.problems(SITE), *check.unsearchable(SITE, names)]
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    if code or problems:
        return 1
    site = SITE.relative_to(pages.ROOT)
    sys.stdout.write(f"The site is in {site}. To read it, run: python -m http.server -d {site}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
