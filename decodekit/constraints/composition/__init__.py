r"""Constraints made of others: parts in a row, one of several, many; free text, and tags in it.

    dk.Concat("Answer: ", dk.Regex(r"\d+"))
    dk.Reasoned(Invoice)                                    # free text until a tag, then JSON
    dk.Tagged(dk.Tag("<b>", dk.Text(excludes=["</b>"]), "</b>"))

Each parses a text into the values of its parts; how a text divides is said in the module `split`.
"""
