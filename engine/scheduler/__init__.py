"""One process per DP rank: admits requests, forms batches, runs them, takes part in operations."""
