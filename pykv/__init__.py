"""pykv: one shared KV cache for all sessions of an LLM service."""
