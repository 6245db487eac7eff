"""The place where a text stops to be allowed, and what could stand there: for messages only."""
