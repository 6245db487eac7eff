"""A constraint whose masks another engine makes.

by_llguidance = dk.backend("llguidance")
llm.generate(prompt, constraint=by_llguidance(Invoice))
dk.compile(by_llguidance(dk.Regex("[0-9]+")), tokenizer).matcher()
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from typing import Any, Final

from decodekit.constraints import Constraint, JsonSchema, as_constraint
from decodekit.constraints.constraint import WrappedConstraint, set_fields
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.constraints.network import Frame
from decodekit.errors import ConstraintError, OptionError, UnknownNameError, UnsupportedSchemaError
from decodekit.integrations.backends.peer import Peer
from decodekit.integrations.backends.peer_matcher import PeerGrammar
from decodekit.plugins import did_you_mean
from decodekit.records.strict_json import pointer_of, read_json, validator_of
from decodekit.vocabulary import Vocabulary

BACKENDS: Final = {
    "llguidance": "LLGuidance",
    "xgrammar": "XGrammar",
    "outlines-core": "OutlinesCore",
    "lm-format-enforcer": "LMFormatEnforcer",
}
"""The class of each peer, by the name of its package."""


@dataclass(frozen=True, slots=True)
class Backed(WrappedConstraint):
    """The texts of a constraint, as another engine follows them. `backend` makes it.

    A finished text is judged by the constraint itself, a JSON Schema by the package `jsonschema`: what the other engine
    lets through and the constraint does not allow is an error of its row, never a value.

    Args:
        constraint: a `Constraint`, or what `as_constraint` takes as one.
        peer: the other engine.
    """

    constraint: Constraint
    peer: Peer

    def __init__(self, constraint: object, peer: Peer) -> None:
        inner = as_constraint(constraint)
        set_fields(self, constraint=inner.constraint if isinstance(inner, Backed) else inner, peer=peer)

    def root(self) -> Frame:
        """None, but an error: masks are the peer's, and our own engine would follow a part of a larger constraint."""
        cause = f"the masks of {self.peer.name} are made for whole texts: this cannot be a part of another constraint"
        hint = f"the backend outermost: dk.backend({self.peer.name!r})(the whole constraint)"
        raise UnsupportedSchemaError(cause, at=f"{self.constraint!r:.80}", hint=hint)

    def parse(self, text: str) -> object:
        """The value that the constraint gives.

        Raises:
            ConstraintError: the constraint does not allow the text.
        """
        inner = self.constraint
        try:
            value = inner.parse(text)
            if isinstance(inner, JsonSchema) and inner.python_type is None:  # its `parse` reads what our masks allow
                schema: Any = inner.schema
                fault = next(iter(validator_of(schema).iter_errors(read_json(text))), None)
                if fault is not None:
                    raise ValueError(f"{fault.message} at #{pointer_of(fault.path)}")
        except ConstraintError:
            raise
        except ValueError as error:
            cause = f"{self.peer.name} has let through a text that the constraint does not allow: {error}"
            raise ConstraintError(cause, at=f"{text[:80]!r}", hint="the constraint without a backend") from error
        return value

    def compiled(self, vocabulary: Vocabulary) -> CompiledGrammar:
        """The grammar of the peer; raises what `PeerGrammar` raises."""
        return PeerGrammar(self, self.peer, self.constraint, vocabulary)


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend: it makes constraints that `peer` follows; see `backend`."""

    peer: Peer

    def __call__(self, constraint: object) -> Backed:
        """The constraint, followed by the peer."""
        return Backed(constraint, self.peer)


def backend(engine: str | Peer, **options: Any) -> Backend:
    """Another constraint engine in place of ours: ``backend("llguidance")(constraint)`` is a constraint.

    Args:
        engine: ``"llguidance"``, ``"xgrammar"``, ``"outlines-core"`` or ``"lm-format-enforcer"``, the name of its
            package, which has to be installed; or a `Peer` of your own.
        options: of the peer, such as ``whitespace_flexible=False`` for llguidance.

    Raises:
        UnknownNameError: no such engine.
        OptionError: an option that it does not have, or something that is no `Peer`.
    """
    if not isinstance(engine, str):
        if not isinstance(engine, Peer) or options:
            cause = f"{engine!r:.60} is no backend" if not options else f"options are the peer's own: {sorted(options)}"
            hint = f"one of {', '.join(BACKENDS)}, or a Peer with its options in it"
            raise OptionError(cause, at="backend", hint=hint)
        return Backend(engine)
    if engine not in BACKENDS:
        cause = f"no backend {engine!r:.60}.{did_you_mean(engine, BACKENDS)} There are: {', '.join(BACKENDS)}."
        raise UnknownNameError(cause, at="backend")
    module = importlib.import_module(f"decodekit.integrations.backends.{engine.replace('-', '_')}")
    kind = getattr(module, BACKENDS[engine])
    known = [one.name for one in fields(kind) if one.init]
    for name in options:
        if name not in known:
            cause = f"the backend {engine} has no option {name!r}.{did_you_mean(name, known)}"
            raise OptionError(cause, at=name, hint=f"one of {', '.join(known) or 'none: it has no options'}")
    return Backend(kind(**options))
