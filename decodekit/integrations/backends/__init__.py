"""Backends: the masks of other constraint engines in our loop, for comparisons and for what they do better.

    llm.generate(prompt, constraint=dk.backend("llguidance")(Invoice))

`Backed` is the constraint that `backend` makes, `PeerMatcher` the `Matcher` of it; a module each for the peers
(`llguidance`, `xgrammar`, `outlines_core`, `lm_format_enforcer`) says how the peer reads a constraint and follows a
text.
"""

from decodekit.integrations.backends.backed import BACKENDS, Backed, backend
from decodekit.integrations.backends.peer import Peer, PeerText
from decodekit.integrations.backends.peer_matcher import PeerGrammar, PeerMatcher

__all__ = ["BACKENDS", "Backed", "Peer", "PeerGrammar", "PeerMatcher", "PeerText", "backend"]
