"""Options of sampling strategies: `declared` by processors, and `option_fields`, which is written from that."""
