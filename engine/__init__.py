"""The Quiesce inference engine. Importing it loads nothing; see `python -m engine --help`."""
