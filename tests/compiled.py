"""Compile the kernels that tests use, once: the workers of a test run would do it side by side, each for itself.

    python -m tests.compiled

numba keeps the machine code in ``__pycache__`` beside the sources, so this takes time in a fresh clone only.
"""

from __future__ import annotations

import decodekit as dk
from tests.sampling import test_large_vocabulary

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["invoice", "receipt"]}, "names": {"items": {"type": "string", "maxLength": 9}}},
    "required": ["kind", "names"],
}


def main() -> None:
    """Texts under a schema and a grammar, and draws from wide rows."""
    llm = dk.LLM.load("tiny")
    for strategy in (dk.Greedy(), dk.Sample(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01), dk.Sample(top_p=0.9)):
        for constraint in (SCHEMA, dk.Grammar("arithmetic")):
            llm.generate(["Invoice A-17", "A"], strategy=strategy, constraint=constraint, max_new_tokens=24)
    # The kernels of wide rows are those that the tests of them call.
    for pipeline in test_large_vocabulary.PIPELINES:
        test_large_vocabulary.test_a_narrowed_row_is_the_whole_row(pipeline, "normal")
    test_large_vocabulary.test_the_lazy_draw_is_the_whole_draw("normal")
    test_large_vocabulary.test_kth_largest()


if __name__ == "__main__":
    main()
