"""Jobs: many documents in, validated JSON out, in a folder that survives being killed.

What `decodekit extract` does, in Python:

    options = ExtractionOptions(load_schema("invoice.py:Invoice"), model="tiny")
    extraction = Extraction(LLM.load("tiny"), options)
    source = Input("documents.jsonl")
    folder, _ = JobFolder.create_or_resume(Path("out"), extraction.settings)
    with folder:
        folder.add_inputs([source])
        summary = extraction.run(folder, scan([source]).entries)

`documents` names files and folders and lists what they hold, `job_schema` and `document_prompt` say what is asked,
`validation` has the last word on every output, `folder` keeps what came of it, `job_runner` decodes, and is the loop
over all of these; `reports` shows it.
"""
