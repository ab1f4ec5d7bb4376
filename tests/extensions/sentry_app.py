"""An app that reports to Sentry. sentry-sdk patches Flask itself, so this app has a server of its own."""

from __future__ import annotations

from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.extensions.app import mounted, root

sent: list[str] = []


class _Recorder(Transport):
    """Records what Sentry's server would receive."""

    def capture_envelope(self, envelope: Envelope) -> None:
        sent.extend(f"{item.type} {(item.payload.json or {}).get('transaction')}" for item in envelope.items)


def create() -> Any:
    sentry_sdk.init("https://key@sentry.invalid/1", transport=_Recorder, traces_sample_rate=1.0)
    app = root()
    app.add_url_rule("/sent", "sent", lambda: sent)
    return mounted(app)
