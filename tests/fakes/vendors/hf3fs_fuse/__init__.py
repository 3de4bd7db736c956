"""Stand-in for 3FS's Python package, for tests: no 3FS cluster runs here."""
