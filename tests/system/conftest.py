"""The whole stack needs the real model too."""

from tests.engine.conftest import cpu_ext_dir, smollm2_dir

__all__ = ["cpu_ext_dir", "smollm2_dir"]
