"""What a mask cannot decide, asked of whole arrays and objects: a judge of values, and the guard made of it."""
