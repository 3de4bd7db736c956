"""New weights beside the old: where they come from, staging, and the swap."""
