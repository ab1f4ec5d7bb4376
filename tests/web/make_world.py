"""Writes the map of the demo's page from the countries of Natural Earth, which are in the public domain.

    npm pack world-atlas@2.0.2 i18n-iso-countries && tar xzf ... # countries-110m.json, and codes.json with the ISO codes
    python -m tests.web.make_world countries-110m.json codes.json > kafkasse/assets/demo/assets/world.js

The projection is Equal Earth, in which areas can be compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from math import asin, cos, radians, sin, sqrt
from pathlib import Path
from typing import Any

SCALE = 180.0  # units per radian at the equator: the map is about 1,000 units wide
MARGIN = 2
EAST = 6  # units for the countries that reach beyond the 180th meridian
A1, A2, A3, A4 = 1.340264, -0.081106, 0.000893, 0.003796  # Šavrič, Patterson, Jenny: The Equal Earth map projection
HEAD = """\
// The shapes of the countries by their ISO 3166 codes, in the Equal Earth projection. Made by tests/web/make_world.py with
// Natural Earth (https://www.naturalearthdata.com), which is in the public domain.

"""

Point = tuple[float, float]


def project(longitude: float, latitude: float) -> Point:
    """Return the place of a point, given in degrees, on the map."""
    t = asin(sqrt(3) / 2 * sin(radians(latitude)))
    x = 2 * sqrt(3) * radians(longitude) * cos(t) / (3 * (9 * A4 * t**8 + 7 * A3 * t**6 + 3 * A2 * t**2 + A1))
    y = A4 * t**9 + A3 * t**7 + A2 * t**3 + A1 * t
    return SCALE * x, -SCALE * y


def arcs(topology: Any) -> list[list[Point]]:
    """Return the lines of a TopoJSON file in degrees."""
    (scale_x, scale_y), (start_x, start_y) = topology["transform"]["scale"], topology["transform"]["translate"]
    lines = []
    for arc in topology["arcs"]:
        x = y = 0
        line = []
        for step_x, step_y in arc:
            x, y = x + step_x, y + step_y
            line.append((x * scale_x + start_x, y * scale_y + start_y))
        lines.append(line)
    return lines


def rings(geometry: Any, lines: list[list[Point]]) -> Iterator[list[Point]]:
    """Yield the rings of a polygon or of several polygons."""
    polygons = geometry["arcs"] if geometry["type"] == "MultiPolygon" else [geometry["arcs"]]
    for polygon in polygons:
        for ring in polygon:
            yield joined(
                [point for number in ring for point in (lines[number] if number >= 0 else lines[~number][::-1])]
            )


def joined(ring: list[Point]) -> list[Point]:
    """Return a ring that crosses the 180th meridian in one piece, which is partly east of it. Antarctica stays as it is."""
    if min(latitude for _, latitude in ring) < -80:
        return ring
    longitudes = [ring[0][0]]
    for longitude, _ in ring[1:]:
        longitudes.append(longitude + 360 * round((longitudes[-1] - longitude) / 360))
    shift = 360 if sum(longitudes) / len(longitudes) < -180 else 0
    return [(longitude + shift, latitude) for longitude, (_, latitude) in zip(longitudes, ring, strict=True)]


def path(ring: list[Point], left: int, top: int) -> str:
    """Return a ring as SVG with whole numbers, or "" if it is smaller than that."""
    points: list[tuple[int, int]] = []
    for longitude, latitude in ring:
        x, y = project(longitude, latitude)
        point = round(x) - left, round(y) - top
        if not points or point != points[-1]:
            points.append(point)
    if len(points) < 3:
        return ""
    steps = [(x - before_x, y - before_y) for (before_x, before_y), (x, y) in pairwise(points[:-1])]
    moves = " ".join(f"{x} {y}" for x, y in steps).replace(" -", "-")
    return f"M{points[0][0]} {points[0][1]}l{moves}z"


def main() -> None:
    topology, codes = (json.loads(Path(file).read_text()) for file in sys.argv[1:])
    alpha2 = {number: short for short, _, number, *_ in codes}
    lines = arcs(topology)
    left = round(project(-180, 0)[0]) - MARGIN
    top = round(project(0, 90)[1]) - MARGIN
    shapes = {}
    for geometry in topology["objects"]["countries"]["geometries"]:
        if code := alpha2.get(geometry.get("id", "")):
            shapes[code] = "".join(path(ring, left, top) for ring in rings(geometry, lines))
    sys.stdout.write(HEAD)
    sys.stdout.write(f'export const VIEW_BOX = "0 0 {-2 * left + EAST} {-2 * top}";\n\n')
    sys.stdout.write("export const SHAPES = {\n")
    for code, shape in sorted(shapes.items()):
        sys.stdout.write(f'  {code}: "{shape}",\n')
    sys.stdout.write("};\n")


if __name__ == "__main__":
    main()
