"""The JSON form of values that JSON cannot represent (bytes, NaN, infinity), as in Protobuf's JSON mapping.

Avro values have the same form.
"""

from __future__ import annotations

import base64
import math
from typing import Any

JsonObject = dict[str, Any]


def as_json_number(value: float) -> float | str:
    """Return a number, or "NaN", "Infinity" or "-Infinity"."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def as_base64(value: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(value).decode()
