"""The settings of Sphinx. docs/site/pages.py writes the source; run both with `make site`."""

from kafkasse import __version__

project = "kafkasse"
author = "the developers of kafkasse"
project_copyright = "the developers of kafkasse; Apache License 2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 4  # the anchors of GitHub, so that links work in both places
myst_links_external_new_tab = False
napoleon_custom_sections = ["Source"]
default_role = "code"  # docstrings quote names as Markdown does
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_use_ivar = True  # an attribute in a docstring is not documented a second time
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # Pygments does not know the language of every sample
copybutton_exclude = ".linenos, .gp"

# `make links`. Samples contain addresses of this machine and of hosts that do not exist.
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)\b", r"https?://[^/]*\.example\b", r"https?://…"]
linkcheck_anchors_ignore_for_url = [r"https://github\.com/"]  # GitHub creates its anchors with JavaScript
linkcheck_timeout = 15
linkcheck_retries = 2
linkcheck_report_timeouts_as_broken = True

html_theme = "pydata_sphinx_theme"
html_title = "kafkasse"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
html_logo = "static/icon.svg"
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "kafkasse"},
    "navbar_center": [],
    "navbar_persistent": ["search-button-field"],
    "navbar_end": ["theme-switcher"],
    "globaltoc_maxdepth": 1,  # without the headings of the current page
    "show_toc_level": 1,
    "navigation_with_keys": False,  # the arrow keys scroll, as on other pages
    "search_as_you_type": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "article_footer_items": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"**": ["globaltoc.html"]}  # one level: all pages, below the headings of the start page
