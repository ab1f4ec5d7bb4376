"""Read a YAML file: its value, and the line of each part of it. This module opens no file.

Its error messages quote no value of the file, because a value can be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, NamedTuple

import yaml

YamlPath = tuple[str | int, ...]

# PyYAML's description of a problem may quote a part of the file. This matches descriptions that quote only tokens and
# punctuation.
_QUOTES_NO_VALUE = re.compile(r"(?:[^'\"]|'<[a-z ]+>'|'[-,:?{}\[\]]')*")
_RESERVED_CHARACTER = "a value starts with a character that YAML reserves: put the value in quotes"


class NotYaml(ValueError):
    """The text is not YAML. `line` is None if the problem concerns the whole text."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Document(NamedTuple):
    """The content of a YAML file.

    Attributes:
        value: the content. Names and times are text: in YAML 1.1, the name `on` would be the value true.
        lines: the line of each value, by its path; for a value of a mapping, the line of its name.
        repeated: the paths of names that a mapping contains twice, each with the line of the first and of the second one.
    """

    value: Any
    lines: dict[YamlPath, int]
    repeated: list[tuple[YamlPath, int, int]]


def parse(content: bytes) -> Document:
    """Parse a YAML file. The value of an empty one is None.

    Raises:
        NotYaml: the content is not valid YAML in UTF-8.
    """
    document = Document(None, {}, [])
    try:
        loader = _Loader(content.decode())
        node = loader.get_single_node()
        if node is None:
            return document
        _index(node, (), document, set())
        return document._replace(value=loader.construct_document(node))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYaml(f"this is not valid YAML: {_reason(error)}.", mark.line + 1 if mark else 1) from None
    except (yaml.YAMLError, ValueError):
        raise NotYaml("this is not a text file in UTF-8.") from None
    except RecursionError:
        raise NotYaml("the lists and mappings are nested too deeply.") from None


class _Loader(yaml.SafeLoader):
    """A safe loader that reports the line of every error, and reads names and times as text."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError):  # such as the date 2026-99-99
            problem = "this value cannot be read; put text in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode):
                name.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def _reason(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or ""
    if "'\\t'" in problem:
        return "a line is indented with a tab: use spaces"
    if problem.startswith("mapping values are not allowed"):
        return "a value contains a colon, or a line is indented too far: put text with a colon in quotes"
    if "unexpected end of stream" in problem:
        return "a quote or a bracket is not closed"
    if "cannot start any token" in problem or "alias" in problem or "tag" in problem or "alphabetic" in problem:
        return _RESERVED_CHARACTER
    return problem if _QUOTES_NO_VALUE.fullmatch(problem) else "check the indentation, quotes and brackets"


def _index(node: yaml.Node, path: YamlPath, document: Document, seen: set[int]) -> None:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _index(item, (*path, number), document, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, item in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                document.repeated.append(((*path, name), lines[name], line))
            lines[name] = document.lines[*path, name] = line
            _index(item, (*path, name), document, seen)
