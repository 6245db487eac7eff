"""decodekit: decoding and structured generation for any Hugging Face causal LM; speed options never change the text.

The public names are listed in `_PUBLIC`. They load when first used, so `import decodekit` needs neither torch nor
transformers nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from decodekit.processor_names import PROCESSORS

__version__ = "0.1.0"

# module -> the public names that it defines
_PUBLIC: dict[str, str] = {
    "decodekit.llm": "LLM Chunk Completion Decision Engine EngineStats GenerateOptions Handle Score generate to_pandas",
    "decodekit.strategy": """
        Amateur Beam BestOf ContrastiveSearch DoLa Greedy Guidance Mirostat Particles Sample SelfConsistency
        Strategy
    """,
    "decodekit.speculation": """
        Adaptive DraftModel EarlyExit GrammarDraft Joined PromptLookup Suffix SuffixCorpus
    """,
    "decodekit.sampling": " ".join(["Pipeline", *PROCESSORS, "watermark_score"]),
    "decodekit.constraints": """
        Choices CompiledGrammar Concat Grammar Guarded JsonSchema Many OneOf Optional Reasoned Regex Special Tag
        TagValue Tagged Text ToolCall ToolResponse check compile complete sample_text
    """,
    "decodekit.chat.thought": "Thought",
    "decodekit.chat.tools": "tools",
    "decodekit.evaluation": "calibrate compare",
    "decodekit.costs": "Estimate estimate",
    "decodekit.integrations.hf": "hf",
    "decodekit.integrations.mask_processor": "processor",
    "decodekit.jobs.extracted_rows": "ExtractedRow extract",
    "decodekit.errors": "DecodekitError",
    "decodekit.integrations.backends": "backend",
    "decodekit.vocabulary": "Vocabulary",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = ["__version__", *_HOME, "testing"]

if TYPE_CHECKING:
    from decodekit import testing as testing
    from decodekit.chat.thought import Thought as Thought
    from decodekit.chat.tools import tools as tools
    from decodekit.constraints import Choices as Choices
    from decodekit.constraints import CompiledGrammar as CompiledGrammar
    from decodekit.constraints import Concat as Concat
    from decodekit.constraints import Grammar as Grammar
    from decodekit.constraints import Guarded as Guarded
    from decodekit.constraints import JsonSchema as JsonSchema
    from decodekit.constraints import Many as Many
    from decodekit.constraints import OneOf as OneOf
    from decodekit.constraints import Optional as Optional
    from decodekit.constraints import Reasoned as Reasoned
    from decodekit.constraints import Regex as Regex
    from decodekit.constraints import Special as Special
    from decodekit.constraints import Tag as Tag
    from decodekit.constraints import Tagged as Tagged
    from decodekit.constraints import TagValue as TagValue
    from decodekit.constraints import Text as Text
    from decodekit.constraints import ToolCall as ToolCall
    from decodekit.constraints import ToolResponse as ToolResponse
    from decodekit.constraints import check as check
    from decodekit.constraints import compile as compile
    from decodekit.constraints import complete as complete
    from decodekit.constraints import sample_text as sample_text
    from decodekit.costs import Estimate as Estimate
    from decodekit.costs import estimate as estimate
    from decodekit.errors import DecodekitError as DecodekitError
    from decodekit.evaluation import calibrate as calibrate
    from decodekit.evaluation import compare as compare
    from decodekit.integrations.backends import backend as backend
    from decodekit.integrations.hf import hf as hf
    from decodekit.integrations.mask_processor import processor as processor
    from decodekit.jobs.extracted_rows import ExtractedRow as ExtractedRow
    from decodekit.jobs.extracted_rows import extract as extract
    from decodekit.llm import LLM as LLM
    from decodekit.llm import Chunk as Chunk
    from decodekit.llm import Completion as Completion
    from decodekit.llm import Decision as Decision
    from decodekit.llm import Engine as Engine
    from decodekit.llm import EngineStats as EngineStats
    from decodekit.llm import GenerateOptions as GenerateOptions
    from decodekit.llm import Handle as Handle
    from decodekit.llm import Score as Score
    from decodekit.llm import generate as generate
    from decodekit.llm import to_pandas as to_pandas
    from decodekit.sampling import Pipeline as Pipeline
    from decodekit.sampling import watermark_score as watermark_score
    from decodekit.sampling.options.option_fields import *  # noqa: F403
    from decodekit.speculation import Adaptive as Adaptive
    from decodekit.speculation import DraftModel as DraftModel
    from decodekit.speculation import EarlyExit as EarlyExit
    from decodekit.speculation import GrammarDraft as GrammarDraft
    from decodekit.speculation import Joined as Joined
    from decodekit.speculation import PromptLookup as PromptLookup
    from decodekit.speculation import Suffix as Suffix
    from decodekit.speculation import SuffixCorpus as SuffixCorpus
    from decodekit.strategy import Amateur as Amateur
    from decodekit.strategy import Beam as Beam
    from decodekit.strategy import BestOf as BestOf
    from decodekit.strategy import ContrastiveSearch as ContrastiveSearch
    from decodekit.strategy import DoLa as DoLa
    from decodekit.strategy import Greedy as Greedy
    from decodekit.strategy import Guidance as Guidance
    from decodekit.strategy import Mirostat as Mirostat
    from decodekit.strategy import Particles as Particles
    from decodekit.strategy import Sample as Sample
    from decodekit.strategy import SelfConsistency as SelfConsistency
    from decodekit.strategy import Strategy as Strategy
    from decodekit.vocabulary import Vocabulary as Vocabulary


def __getattr__(name: str) -> Any:
    if name == "testing":  # the checks of authors, a module
        return importlib.import_module("decodekit.testing")
    if name not in _HOME:
        raise AttributeError(f"module 'decodekit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
