"""A module that cannot be imported."""

raise RuntimeError("this plug-in was written for another version")
