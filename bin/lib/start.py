"""First half of bin/run, under the system's Python: options, environment; then the supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import environment
import options
import state


def main() -> None:
    """Check, install, hand over."""
    wanted = options.read(sys.argv[1:])
    state.claim_ports(wanted)
    state.open_folder(wanted.state_dir)
    environment.ensure(device=wanted.device)
    supervisor = str(Path(__file__).with_name("supervise.py"))
    os.execv(environment.PYTHON, [str(environment.PYTHON), supervisor, *sys.argv[1:]])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        options.fail(f"{error.strerror}: {error.filename}" if error.filename else str(error), 1)
