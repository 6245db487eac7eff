"""Strategies, which choose tokens, as frozen values, and the names by which they are found."""

from decodekit.speculation.proposer_names import PROPOSERS as PROPOSERS
from decodekit.strategy.contrasts import Amateur as Amateur
from decodekit.strategy.contrasts import DoLa as DoLa
from decodekit.strategy.contrasts import Guidance as Guidance
from decodekit.strategy.options.generate_options import GENERATION_OPTIONS as GENERATION_OPTIONS
from decodekit.strategy.options.generate_options import GenerateKeywords as GenerateKeywords
from decodekit.strategy.options.generate_options import GenerateOptions as GenerateOptions
from decodekit.strategy.options.spelled import CONTRASTS as CONTRASTS
from decodekit.strategy.options.spelled import spelled_strategy as spelled_strategy
from decodekit.strategy.searches import Beam as Beam
from decodekit.strategy.searches import ContrastiveSearch as ContrastiveSearch
from decodekit.strategy.several import BestOf as BestOf
from decodekit.strategy.several import Particles as Particles
from decodekit.strategy.several import SelfConsistency as SelfConsistency
from decodekit.strategy.strategy import Strategy as Strategy
from decodekit.strategy.strategy import check_seed as check_seed
from decodekit.strategy.strategy_names import all_option_names as all_option_names
from decodekit.strategy.strategy_names import available_strategies as available_strategies
from decodekit.strategy.strategy_names import resolve_strategy as resolve_strategy
from decodekit.strategy.strategy_names import strategy_factory as strategy_factory
from decodekit.strategy.tokenwise import Greedy as Greedy
from decodekit.strategy.tokenwise import Mirostat as Mirostat
from decodekit.strategy.tokenwise import Sample as Sample
from decodekit.strategy.tokenwise import can_redraw as can_redraw
from decodekit.strategy.tokenwise import lead_of as lead_of
