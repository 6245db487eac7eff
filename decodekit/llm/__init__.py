"""The front door: a model with its tokenizer, prompts in, completions out. It contains no algorithm.

    llm = LLM.load("tiny")
    completion = llm.generate("Invoice A-17, total 40.20 EUR.", constraint=Invoice)
    completion.value

`front` has the class `LLM` and the function `generate`, whose options are `strategy.generate_options`. `option_rules`
says what is wrong with options, `plan` turns them into the settings of the loops, `completions` turns results of the
loops into completions, `decisions` has those of `LLM.decide`, and `tokenizers` keeps what was read of a tokenizer.
`engine` takes requests at any time, and `handle` is what it gives for one; `awaited` is what `LLM.agenerate` asks of
one.
"""

from decodekit.generation.completion import Chunk, Completion, Score
from decodekit.llm.decisions import Decision
from decodekit.llm.engine import Engine, EngineStats
from decodekit.llm.front import LLM, generate
from decodekit.llm.handle import Handle
from decodekit.llm.tables import to_pandas
from decodekit.strategy.generate_options import GenerateKeywords, GenerateOptions, StrategyLike

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "Decision",
    "Engine",
    "EngineStats",
    "GenerateKeywords",
    "GenerateOptions",
    "Handle",
    "Score",
    "StrategyLike",
    "generate",
    "to_pandas",
]
