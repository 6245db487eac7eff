"""From logits to a token for each row: on the host, on the device, by rejection."""
