"""WebSocket endpoints: subscribe, re-read, send."""
