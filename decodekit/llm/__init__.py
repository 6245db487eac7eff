"""The front door: a model with its tokenizer, prompts in, completions out. It contains no algorithm.

    llm = LLM.load("tiny")
    completion = llm.generate("Invoice A-17, total 40.20 EUR.", constraint=Invoice)
    completion.value

`front` has the class `LLM` and the function `generate`, whose options are `strategy.options.generate_options`.
`plans.option_rules` says what is wrong with options, `plans.plan` turns them into the settings of the loops,
`completions` turns results of the loops into completions, `decisions` has those of `LLM.decide`, and
`vocabulary_cache` keeps what was read of a tokenizer. `engine` takes requests at any time, and `handle` is what it
gives for one; `awaited` is what `LLM.agenerate` asks of one.
"""

from decodekit.decoding.request.completion import Chunk as Chunk
from decodekit.decoding.request.completion import Completion as Completion
from decodekit.decoding.request.completion import Score as Score
from decodekit.llm.decisions import Decision as Decision
from decodekit.llm.engine import Engine as Engine
from decodekit.llm.engine import EngineStats as EngineStats
from decodekit.llm.front import LLM as LLM
from decodekit.llm.front import generate as generate
from decodekit.llm.handle import Handle as Handle
from decodekit.llm.pandas_tables import to_pandas as to_pandas
from decodekit.strategy.options.generate_options import GenerateKeywords as GenerateKeywords
from decodekit.strategy.options.generate_options import GenerateOptions as GenerateOptions
from decodekit.strategy.options.generate_options import StrategyLike as StrategyLike
