"""Django's database backend of the embedded default: `base` is the name that Django looks for."""
