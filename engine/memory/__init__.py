"""Where the KV cache's bytes live. No policy: what is kept is decided elsewhere."""
