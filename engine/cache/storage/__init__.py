"""L3: pages of KV in a store beside the engine. A store that fails costs hits, never an answer."""
