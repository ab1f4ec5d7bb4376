"""The settings in docs/kafka-services.md are valid, with the password from the environment."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from kafkasse.config import Config
from kafkasse.kafka.client import unknown_settings
from tests.support.certificates import Authority
from tests.support.server import ROOT

PAGE = (ROOT / "docs/kafka-services.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
SAMPLES = [
    pytest.param(text, block, id=f"{name} {number}")
    for name, text in SECTIONS.items()
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    authority = Authority()
    certificate, key = authority.issue("kafkasse")
    for name, content in {"ca.pem": authority.certificate, "service.cert": certificate, "service.key": key}.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(("section", "yaml"), SAMPLES)
def test_the_settings_of_a_service_are_valid(section, yaml, certificates, tmp_path):
    """A password is read from the variable that the section sets."""
    variables = dict(re.findall(r"^export (\w+)=(.*)$", section, re.MULTILINE)) if "sasl_plain_username" in yaml else {}
    environ = {name: shlex.split(value)[0] for name, value in variables.items()}
    (tmp_path / "kafkasse.yaml").write_text(yaml.replace("/etc/kafka/", f"{certificates}/"))

    settings = Config.load(environ, tmp_path / "kafkasse.yaml").kafka_settings()

    assert [] == unknown_settings(settings)
    assert list(environ.values()) == ([settings["sasl_plain_password"]] if environ else [])


def test_the_token_provider_of_msk_is_valid(tmp_path):
    """The module needs Amazon's package only when a connection is opened."""
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS["Amazon MSK"], re.DOTALL)
    (tmp_path / "app.py").write_text(block)

    config = runpy.run_path(str(tmp_path / "app.py"))["config"]

    assert callable(config.kafka_settings()["sasl_oauth_token_provider"])


def test_every_service_of_the_table_has_a_section():
    assert set(re.findall(r"^\| \[(.+?)\]\(#", PAGE, re.MULTILINE)) < SECTIONS.keys()
