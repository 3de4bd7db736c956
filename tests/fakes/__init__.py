"""Stand-ins at seams that we own."""
