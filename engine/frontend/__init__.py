"""The engine's front process, without torch: HTTP, control socket, tokenizer, router."""
