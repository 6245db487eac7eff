"""From messages to what the model reads, and back: what a chat template writes, and in which form it reads messages."""
