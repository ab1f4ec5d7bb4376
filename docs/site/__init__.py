"""The documentation site: `make site` builds it into build/site. Any warning, such as a link without a target, is an error.

The Markdown files contain no directives, so that they are readable on GitHub. The lists of links in docs/index.md are the
navigation: a new page needs a line there. A page answers one question: a how-to has steps, a reference has tables, and an
explanation has reasons. Each code block needs a test (tests/project/test_docs.py), and evidence for a promise belongs in
tests/evidence.md. A link to another file of the repository leads to a page that shows the file. `make diagrams` draws
docs/images/*.svg from the D2 files in docs/diagrams, with colors for light and dark pages.

The generator is Sphinx with MyST: it reads Markdown and docstrings, checks links and anchors, and its search needs no
server. Sphinx 9.1 needs Python 3.12, so requirements.txt pins 9.0.4. MkDocs with Material is no longer maintained, and
generators in JavaScript cannot read docstrings. Reconsider Zensical at version 1.0.


pages      from the files of the repository to the pages of the site: copies, navigation, links
reference  pages that are generated from the code: commands, settings, errors, API, source files
metrics    the page of all metrics, from the metrics in the code
tables     those tables, and the first columns of other tables: settings, errors, formats, packages
config_schema  schemas/config.schema.json, from kafkasse/settings.py
conf       the settings of Sphinx
check      what must be true for every built page
links      the check of links to other sites, `make links`
"""
