"""JSON texts as frames: values, objects, arrays, and the whitespace between their parts."""
