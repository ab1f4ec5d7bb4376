"""Check the files of side tables, so that an error does not have to wait for Spark. This module does not depend on Spark.

Only local files are checked. An address such as s3a://… is left to Spark.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from kafkasse.errors import CommandError, did_you_mean

MAX_HEADER_CHARACTERS = 65_536
PARQUET = b"PAR1"  # a Parquet file starts and ends with these bytes
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")


def check(format: str, path: str) -> list[str] | None:
    """Check the file or folder of a table.

    Args:
        format: `csv` or `parquet`.
        path: the file or folder, or an address of another file system.

    Returns:
        The columns of a CSV file, or None if only Spark can read them.

    Raises:
        CommandError: the table cannot be read, is empty, or has another format.
    """
    if "://" in path:
        return None
    try:
        return _columns(format, Path(path))
    except OSError as error:
        hint = "; correct the path, which is relative to the YAML file" if isinstance(error, FileNotFoundError) else ""
        raise CommandError(f"cannot read {error.filename or path}: {error.strerror}{hint}") from error


def check_keys(keys: Iterable[str], columns: list[str]) -> None:
    """Check that each key is the name of exactly one column of the table.

    Raises:
        CommandError: a key is missing, or occurs twice.
    """
    for key in keys:
        equal = [column for column in columns if column.lower() == key.lower()]
        if len(equal) > 1:
            raise CommandError(f"the table has the column {key} {len(equal)} times; rename all but one")
        if key not in columns:
            known = ", ".join(columns)
            raise CommandError(
                f"the table has no column {key}{did_you_mean(key, columns)}; its columns are: {known}; "
                "if the column has another name there, write on: {column of the rows: column of the table}"
            )


def _columns(format: str, path: Path) -> list[str] | None:
    file = _first_file(path, format)
    with file.open("rb") as opened:
        start = opened.read(len(PARQUET))
    if not start:
        raise CommandError(
            f"{file} is empty; write {'a header and rows' if format == 'csv' else 'a Parquet file'} to it"
        )
    if format == "parquet":
        if start != PARQUET:
            raise CommandError(f"{file} is not a Parquet file; for a CSV file, write csv: instead of parquet:")
        return None
    if start == PARQUET:
        raise CommandError(f"{file} is a Parquet file; write parquet: instead of csv:")
    is_partitioned = file.parent not in (path, path.parent)  # the names of the folders are columns, too
    return None if is_partitioned or file.suffix.lower() in COMPRESSED else _header(file)


def _first_file(path: Path, format: str) -> Path:
    """Return the file, or the first file that Spark reads from the folder."""
    if not path.is_dir():
        return path
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith(("_", ".")))
    if not files:
        raise CommandError(f"the folder {path} is empty; write {format} files to it")
    return files[0]


def _header(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            lines = opened.read(MAX_HEADER_CHARACTERS).splitlines()
    except ValueError as error:
        raise CommandError(f"{file} is not UTF-8 text; save it as CSV with the encoding UTF-8") from error
    columns = next(csv.reader(line for line in lines if line.strip()), [])
    if not columns:
        raise CommandError(f"{file} has no header; write the names of the columns to its first line")
    return columns
