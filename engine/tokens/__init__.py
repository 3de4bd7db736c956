"""Text to token ids and back, token by token; shared by frontend and ranks. No torch."""
