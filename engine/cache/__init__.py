"""Which KV pages are kept and found again, on which tier: token ids in, page ids out."""
