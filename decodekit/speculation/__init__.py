"""Guessing ahead: proposers offer drafts, verification keeps of them what the target would have taken itself.

Read `proposer` for what a proposer is, `verification` for why a draft never changes the text.

- `prompt_lookup`, `suffix` (with `suffix_corpus`): copy what followed earlier in the text, or in other texts
- `grammar_draft` (with `canonical`): what the constraint leaves no choice about
- `draft_model`, `early_exit` (with `draft_engine`, `text_draft`): a smaller model, or the first layers of the target
- `joined`: several proposers; `draft_length`: drafts as long as pays; `names`: how callers say it

A new proposer: a class with `propose`, a name for the front door, and `testing.check_proposer` in its test.
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
