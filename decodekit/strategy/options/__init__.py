"""Options of a call as one value, their names elsewhere, and what is said of unknown ones."""
