"""Language models: what a prompt and a token cost, what the cache holds, what fits."""
