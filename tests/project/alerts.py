"""The alerts in deploy/monitoring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def alerts(root: Path) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((root / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    return list(group["rules"])
