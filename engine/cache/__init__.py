"""Which KV pages are kept and found again: token ids in, page ids out. Knows no bytes."""
