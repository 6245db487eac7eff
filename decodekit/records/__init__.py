"""Records that are written as they are found and survive a kill: files of lines, who made them, whose folder it is.

`jobs` keeps documents so, `evaluation` rows of a comparison: `ledger` appends lines, `fingerprints` says whether what
made them is what would make the next ones, `run_folder` lets one process at a time write. Compiled code is kept under
the same kind of number (`compiled_code`).
"""
