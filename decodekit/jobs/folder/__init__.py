"""The folder of a job: its records, its parts, and its exchange with other engines."""
