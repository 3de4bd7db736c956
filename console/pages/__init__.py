"""HTML pages: parse, one service or selector, render."""
