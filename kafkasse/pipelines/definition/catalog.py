"""Find a pipeline by the name on the command line: of kafkasse, of an installed package, of a module, or of a file."""

from __future__ import annotations

import sys
import traceback
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from kafkasse.errors import CommandError, did_you_mean
from kafkasse.pipelines.definition.definitions import Definitions
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.queries.topn import topn

TOPN = Pipeline(
    "topn", "countries", partial(topn, n=3), "topn", summary="the running Top 3 countries by size, per continent"
)

ENTRY_POINTS = "kafkasse.pipelines"  # the group in which packages register pipelines
PIPELINES = {pipeline.name: pipeline for pipeline in (TOPN,)}


def names() -> list[str]:
    """Return the names of the pipelines of kafkasse and of the installed packages."""
    return [*PIPELINES, *sorted(point.name for point in entry_points(group=ENTRY_POINTS))]


def find(name: str) -> Pipeline:
    """Return the pipeline that a user names on the command line.

    Args:
        name: a name in PIPELINES, the name of an entry point of an installed package, `package.module:attribute`, which is
            imported from the current directory or from the installed packages, or `file.yaml:name`. The name after a file
            may be omitted if the file has only one pipeline.

    Raises:
        CommandError: there is no such pipeline, or the module cannot be imported.
    """
    if name in PIPELINES:
        return PIPELINES[name]
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return _imported(point.value)
    file, _, of_file = name.partition(":")
    if file.endswith((".yaml", ".yml")):
        return _defined(Definitions(Path(file)), of_file)
    if ":" in name:
        return _imported(name)
    raise CommandError(f"there is no pipeline {name}{did_you_mean(name, names())}; choose one of: {', '.join(names())}")


def of_file(path: Path) -> list[Pipeline]:
    """Return the pipelines of a YAML file. Raise CommandError as Definitions does."""
    definitions = Definitions(path)
    return [definitions.pipeline(name) for name in definitions.names]


def _defined(definitions: Definitions, name: str) -> Pipeline:
    if not name and len(definitions.names) > 1:
        raise CommandError(f"the file has several pipelines; add ':' and one of: {', '.join(definitions.names)}")
    return definitions.pipeline(name or definitions.names[0])


def _imported(name: str) -> Pipeline:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise CommandError(f"{name} is not written package.module:attribute, such as shop.pipelines:large_orders")
    named: Any = _module(module_name)
    for part in attribute.split("."):
        if not hasattr(named, part):
            pipelines = [key for key, value in vars(named).items() if isinstance(value, Pipeline)]
            raise CommandError(f"{module_name} has no {attribute}{did_you_mean(attribute, pipelines)}")
        named = getattr(named, part)
    if not isinstance(named, Pipeline):
        raise CommandError(f"{name} is a {type(named).__name__}, not a kafkasse.pipelines.Pipeline")
    return named


def _module(name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except CommandError:  # an invalid argument of Pipeline()
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandError(
                f"there is no module {error.name} in this directory or in the installed packages"
            ) from error
        raise CommandError(f"{name} imports {error.name}, which is not installed") from error
    except Exception as error:  # the user's code may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise CommandError(
            f"cannot import {name}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error
