"""The documentation site: `make site` builds it into build/site. docs/site/README.md explains the choices.

pages      from the files of the repository to the pages of the site: copies, navigation, links
reference  pages that are generated from the code: commands, settings, errors, API, source files
metrics    the page of all metrics, from the metrics in the code
tables     those tables, and the first columns of other tables: settings, errors, formats, packages
conf       the settings of Sphinx
check      what must be true for every built page
links      the check of links to other sites, `make links`
"""
