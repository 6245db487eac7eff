"""Guessing ahead: proposers offer drafts, verification keeps of them what the target would have taken itself.

Read `proposer` for what a proposer is, `verification` for why a draft never changes the text.
"""

from decodekit.speculation.draft_length import Adaptive, measured_costs
from decodekit.speculation.draft_model import DraftModel
from decodekit.speculation.early_exit import EarlyExit
from decodekit.speculation.grammar_draft import GrammarDraft
from decodekit.speculation.joined import Chain, Joined
from decodekit.speculation.names import resolve_proposer
from decodekit.speculation.prompt_lookup import PromptLookup
from decodekit.speculation.proposer import Context, Draft, Proposer
from decodekit.speculation.suffix import Suffix
from decodekit.speculation.suffix_corpus import SuffixCorpus
from decodekit.speculation.verification import coupled_match

__all__ = [
    "Adaptive",
    "Chain",
    "Context",
    "Draft",
    "DraftModel",
    "EarlyExit",
    "GrammarDraft",
    "Joined",
    "PromptLookup",
    "Proposer",
    "Suffix",
    "SuffixCorpus",
    "coupled_match",
    "measured_costs",
    "resolve_proposer",
]
