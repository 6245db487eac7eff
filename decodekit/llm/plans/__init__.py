"""From the options of a call to what the loops are given."""
