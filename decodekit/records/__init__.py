"""What is written down while it is found, and survives being killed: files of lines, who made them, whose folder it is.

`jobs` keeps documents so, `evaluation` rows of a comparison: `ledger` appends lines, `fingerprints` says whether what
made them is what would make the next ones, `folder` lets one process at a time write.
"""
