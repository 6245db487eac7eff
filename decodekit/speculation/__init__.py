"""Guessing ahead: proposers offer drafts, verification keeps of them what the target would have taken itself.

Read `proposer` for what a proposer is, `verification` for why a draft never changes the text.

- `proposers.suffix`: copy what followed earlier in the text, or in other texts
- `proposers.grammar_draft` (with `canonical`): what the constraint leaves no choice about
- `proposers.draft_model` (with `draft_engine`): a smaller model, or the first layers of the target
- `proposers.joined`: several proposers; `draft_length`: drafts as long as pays; `proposer_names`: how callers say it

A new proposer: a class with `propose`, a name for the front door, and `testing.check_proposer` in its test.
"""

from decodekit.speculation.draft_length import Adaptive as Adaptive
from decodekit.speculation.draft_length import measured_costs as measured_costs
from decodekit.speculation.proposer import Context as Context
from decodekit.speculation.proposer import Draft as Draft
from decodekit.speculation.proposer import Proposer as Proposer
from decodekit.speculation.proposer_names import resolve_proposer as resolve_proposer
from decodekit.speculation.proposers.draft_model import DraftModel as DraftModel
from decodekit.speculation.proposers.draft_model import EarlyExit as EarlyExit
from decodekit.speculation.proposers.grammar_draft import GrammarDraft as GrammarDraft
from decodekit.speculation.proposers.joined import Chain as Chain
from decodekit.speculation.proposers.joined import Joined as Joined
from decodekit.speculation.proposers.suffix import PromptLookup as PromptLookup
from decodekit.speculation.proposers.suffix import Suffix as Suffix
from decodekit.speculation.proposers.suffix import SuffixCorpus as SuffixCorpus
from decodekit.speculation.verification import coupled_match as coupled_match
