"""Reference pages that are generated from the code, so that they cannot become outdated."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

from docs.site import metrics
from kafkasse import schemas
from kafkasse.commands import SUMMARIES
from kafkasse.config.messages import expected
from kafkasse.errors import URN
from kafkasse.errors import pages as pages_of_errors

# The end of the start page on the site. The repository does not contain these pages.
LIST = """
## Generated from the code

- [Commands](commands.md): all commands and their options, from the command line itself
- [Settings](settings.md): why you would change each setting, from `schemas/config.schema.json`
- [Metrics](metrics.md): the names, labels and meanings, from the code
- [Python API](api.md): the classes and functions for your app, from their docstrings
- [Problem types](problems.md): one page for each `type` of an error
"""
# The public names of the API. If there are none, the page contains those in `__all__`.
API: dict[str, tuple[str, ...]] = {
    "kafkasse": (),
    "kafkasse.config.hooks": ("Hooks",),
    "kafkasse.records.frame": ("TopicRecord",),
    "kafkasse.errors": ("KafkasseError",),
    "kafkasse_client": (),
    "kafkasse.pipelines": (),
}
MEMBERS = {"Config": " load"}  # its other members are for kafkasse itself
MAX_LISTED_FILES = 100


def pages() -> dict[str, str]:
    """Return the generated pages by their names."""
    return {
        "commands.md": commands(),
        "settings.md": settings(),
        "api.md": api(),
        "metrics.md": metrics.page(),
        "problems.md": problem_list(),
        **{f"problems/{name}.md": problem(name) for name in pages_of_errors()},
    }


def commands() -> str:
    """Return the page of all commands, with their help texts."""
    loaded = {name: import_module(f"kafkasse.commands.{name}").command for name in SUMMARIES}
    return "# Commands\n\n" + "".join(
        [
            "Every command prints its help with `--help`. This page contains the same texts.\n",
            *(part for name, each in loaded.items() for part in _command(each, f"kafkasse {name}")),
        ]
    )


def _command(command: click.Command, path: str) -> Iterator[str]:
    # click stores the help option of a command at the first use, so the names must be those of the command line.
    context = click.Context(command, info_name=path, help_option_names=["-h", "--help"], terminal_width=72)
    yield f"\n{'#' * (path.count(' ') + 1)} {path}\n\n```text\n{command.get_help(context).strip()}\n```\n"
    for name, each in sorted(getattr(command, "commands", {}).items()):
        yield from _command(each, f"{path} {name}")


def settings() -> str:
    """Return the page of all settings, those of routes, guards and registries included."""
    schema = schemas.read("config")
    definitions = schema["$defs"]
    sections = [
        ("General settings", "", schema),
        ("Routes", "routes.NAME.", definitions["route"]),
        ("Access of a route", "routes.NAME.access[].", definitions["grant"]),
        ("Guards", "guards.NAME.", definitions["guard"]),
        ("Schema registry", "schema_registry.", definitions["schema_registry"]),
        ("Kafka", "kafka.", definitions["kafka"]),
    ]
    intro = "[Configuration](configuration.md) says where settings come from and which of them belong together."
    return f"# Settings\n\n{intro}\n" + "".join(
        part
        for heading, prefix, each in sections
        for part in (f"\n## {heading}\n", *_settings(prefix, each, definitions))
    )


def _settings(prefix: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    for name, setting in schema.get("properties", {}).items():
        found = {**definitions.get(setting.get("$ref", "").rpartition("/")[2], {}), **setting}
        yield f"\n### `{prefix}{name}`\n\n{_text(found.get('description', ''))}\n\n"
        if "type" in found or "enum" in found or "x-expected" in found:
            yield f"- Expected: {_text(expected(found))}\n"
        if "default" in found:
            yield f"- Default: `{json.dumps(found['default'])}`\n"
        for example in found.get("examples", ())[:2]:
            yield f"- Example: `{json.dumps(example, ensure_ascii=False)}`\n"
        yield from _settings(f"{prefix}{name}.", setting, definitions)  # those of an object


def _text(text: str) -> str:
    """Return plain text as Markdown that shows the same characters."""
    return "".join(f"\\{letter}" if letter in r"\*_[]<>`{}|" else letter for letter in text)


def api() -> str:
    """Return the page of the API, whose content Sphinx reads from the docstrings."""
    parts = ["# Python API\n"]
    for module, names in API.items():
        if find_spec(module) is None:
            continue
        public = [name for name in names or getattr(import_module(module), "__all__", ()) if name != "__version__"]
        if not public:
            continue
        parts.append(f"\n## {module}\n\n```{{eval-rst}}\n")
        for name in public:
            found = getattr(import_module(module), name)
            kind = "class" if inspect.isclass(found) else "function" if callable(found) else "data"
            # The members of a named tuple are its attributes, which the docstring describes.
            options = (
                f"\n   :members:{MEMBERS.get(name, '')}" if kind == "class" and not hasattr(found, "_fields") else ""
            )
            parts.append(f".. auto{kind}:: {module}.{name}{options}\n\n")
        parts.append("```\n")
    return "".join(parts)


def problem_list() -> str:
    """Return the page that lists the types of all errors."""
    rows = "".join(
        f"| [{name}](problems/{name}.md) | {each.status} | `{each.name}` |\n"
        for name, each in pages_of_errors().items()
    )
    intro = (
        "The last part of the `type` of an error is the name of its page, here and on the server, which has the same "
        f"texts at `/-/problems/`. A `type` that starts with `{URN}` ends with the same name."
    )
    return f"# Problem types\n\n{intro}\n\n| page | status | name |\n| --- | --- | --- |\n{rows}{_hidden()}"


def _hidden() -> str:
    entries = "\n".join(f"problems/{name}" for name in pages_of_errors())
    return f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def problem(name: str) -> str:
    """Return the page of one error."""
    each = pages_of_errors()[name]
    return (
        f"# {each.title}\n\n`{name}`, status {each.status}, name `{each.name}`\n\n- **Cause:** {each.cause}\n"
        f"- **Fix:** {each.fix}\n\n[Problem types](../problems.md) lists all errors, and [the wire protocol]"
        "(../wire.md#errors) says "
        "which of them a client should retry.\n"
    )


def files_in(root: Path, folder: str) -> list[str]:
    """Return the text files in a folder of the repository, subfolders included."""
    found = [file for file in sorted((root / folder).rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    return [file.relative_to(root).as_posix() for file in found if _is_text(file)][:MAX_LISTED_FILES]


def source_page(root: Path, path: str) -> str:
    """Return the page that shows a file of the repository, or lists the files in a folder."""
    head = f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n\n"
    depth = "../" * (path.count("/"))
    if (root / path).is_dir():
        return head + "".join(f"- [{file}]({depth}{file}.md)\n" for file in files_in(root, path))
    fence = "`" * 8
    return f"{head}{fence}{_language(path)}\n{(root / path).read_text().rstrip()}\n{fence}\n"


def _language(path: str) -> str:
    try:
        return str(get_lexer_for_filename(path).aliases[0])
    except ClassNotFound:
        return "text"


def _is_text(file: Path) -> bool:
    try:
        file.read_text()
    except UnicodeDecodeError:
        return False
    return True
