"""Which token is taken: strategies as frozen values, and the names by which they are found."""

from decodekit.sampling.options import Processors
from decodekit.strategy.base import PROPOSERS, Strategy, check_seed
from decodekit.strategy.beam import Beam
from decodekit.strategy.contrast import Amateur, DoLa, Guidance
from decodekit.strategy.contrastive import ContrastiveSearch
from decodekit.strategy.generate_options import GENERATION_OPTIONS, GenerateKeywords, GenerateOptions, StrategyLike
from decodekit.strategy.names import all_option_names, available_strategies, resolve_strategy, strategy_factory
from decodekit.strategy.particles import Particles
from decodekit.strategy.several import BestOf, SelfConsistency
from decodekit.strategy.spelled import CONTRASTS, spelled_strategy
from decodekit.strategy.tokenwise import Greedy, Mirostat, Sample, can_redraw, lead_of

__all__ = [
    "CONTRASTS",
    "GENERATION_OPTIONS",
    "PROPOSERS",
    "Amateur",
    "Beam",
    "BestOf",
    "ContrastiveSearch",
    "DoLa",
    "GenerateKeywords",
    "GenerateOptions",
    "Greedy",
    "Guidance",
    "Mirostat",
    "Particles",
    "Processors",
    "Sample",
    "SelfConsistency",
    "Strategy",
    "StrategyLike",
    "all_option_names",
    "available_strategies",
    "can_redraw",
    "check_seed",
    "lead_of",
    "resolve_strategy",
    "spelled_strategy",
    "strategy_factory",
]
