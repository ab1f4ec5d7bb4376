"""The program `kafkasse`. It sets up this process for a terminal; kafkasse.commands runs the command."""

import io
import signal
import sys


class _Stderr(io.FileIO):
    """Discards text that cannot be written, so that a full disk under the log does not end the command."""

    def write(self, text: bytes) -> int:  # type: ignore[override]
        try:
            return super().write(text)
        except OSError:
            return len(text)


def main() -> int:
    """Run one command. Returns its exit code."""
    handler = signal.getsignal(signal.SIGINT)  # SIG_IGN if a shell started this process in the background
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # otherwise, Ctrl-C during an import would print a traceback
    if sys.stderr is not None:
        sys.stderr = io.TextIOWrapper(
            _Stderr(2, "w", closefd=False), sys.stderr.encoding, "backslashreplace", write_through=True
        )

    from kafkasse.commands import main as run

    signal.signal(signal.SIGINT, handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
