"""Sets of JSON values: numbers, shapes (a disjunction for each type), scalars, whether a set is empty."""
