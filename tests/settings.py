"""Django's settings under pytest: a private state folder and the path of a private Valkey."""

import os
import secrets
import tempfile
from pathlib import Path

TEST_STATE_DIR = Path(tempfile.mkdtemp(prefix="quiesce-test-"))
_FOR_TESTS = {"QUIESCE_CHROMIUM", "QUIESCE_SCREENSHOTS"}
for name in [name for name in os.environ if name.startswith("QUIESCE_")]:
    if name not in _FOR_TESTS:
        del os.environ[name]
os.environ.pop("DATABASE_URL", None)
os.environ["QUIESCE_STATE_DIR"] = str(TEST_STATE_DIR)
os.environ["QUIESCE_SECRET_KEY"] = secrets.token_urlsafe(64)
os.environ["REDIS_URL"] = f"unix://{TEST_STATE_DIR}/valkey.sock"

from console.project.settings import *  # noqa: E402, F403
from console.project.settings import DATABASES  # noqa: E402

# A real file: an in-memory database has other locks than the one we ship.
DATABASES["default"]["TEST"] = {"NAME": str(TEST_STATE_DIR / "test.sqlite3")}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
