"""Makes a second, truly different checkpoint, so that people can try a weight update."""
