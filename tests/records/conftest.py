"""The small disk of the jobs, for the files that they are made of."""

from tests.jobs.conftest import small_disk

__all__ = ["small_disk"]
