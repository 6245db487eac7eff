"""Options of requests, checked once: equal ones have one plan, so that their rows are decoded together.

Plans are kept for later requests. What they hold of constraints is bounded, however many large ones are asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

from decodekit.constraints.memory_account import share
from decodekit.decoding.loop.decoder import Decoder
from decodekit.decoding.loop.step import Texts
from decodekit.decoding.loop.text_row import Request
from decodekit.decoding.request.prompt import Prompt
from decodekit.errors import DecodekitError, OptionError, raise_faults
from decodekit.llm.plans.plan import Plan
from decodekit.models.causal_lm import CausalLM
from decodekit.strategy import Guidance, check_seed
from decodekit.strategy.options.generate_options import GenerateOptions

MANY_PLANS: Final = 128
MOST_BYTES: Final = 256 << 20
"""Most memory of the constraints of the plans that are kept; less if the memory limit is low."""

_MANY_CONTRASTS: Final = 16
_OF_PROMPTS: Final = dict.fromkeys(("tools", "enable_thinking", "chat_template_kwargs", "split_special_tokens"))
"""Options that say what is read, and not what is done with it."""
V = TypeVar("V")


class PlansRequests(Protocol):
    """The part of an `LLM` that an engine needs."""

    @property
    def model(self) -> CausalLM:
        """The model."""

    def plan(self, options: GenerateOptions, faults: list[DecodekitError]) -> Plan:
        """Checked options; the faults are raised with what else is found."""

    def request(self, prompt: Prompt, plan: Plan, seed: int | None) -> Request:
        """A prompt in tokens, with its constraint; a `DecodekitError` if it cannot be read."""


class Kept(Generic[V]):
    """Values by key, those that were used last: `MANY_PLANS` of them, and constraints of so many bytes.

    One value is kept in any case. Threads need a lock.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: Hashable) -> V | None:
        """The value of a key, which counts as a use of it; None if it is not kept."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def keep(self, key: Hashable, value: V, num_bytes: int) -> V:
        """Keep a value; the one that is there already, if there is one."""
        known = self.find(key)
        if known is not None:
            return known
        self._values[key] = value, num_bytes
        self.num_bytes += num_bytes
        while len(self) > MANY_PLANS or (len(self) > 1 and self.num_bytes > share(MOST_BYTES, 4)):
            self.num_bytes -= self._values.popitem(last=False)[1][1]
        return value


class Preparing:
    """Makes plans for the requests of an engine. Threads may share it.

    Args:
        llm: makes the plans.
    """

    def __init__(self, llm: PlansRequests) -> None:
        self._llm = llm
        self._lock = threading.Lock()
        self._plans = Kept[tuple[Plan, Decoder[Any], object]]()  # with what the key of its options names by identity
        self._batch_keys = Kept[tuple[object, object]]()
        self._models: list[tuple[object, CausalLM]] = []
        self._texts: list[Texts] = []

    def plan(self, options: GenerateOptions, faults: list[DecodekitError]) -> tuple[Plan, Decoder[Any]]:
        """The plan of options, and what decodes the requests that have them.

        Args:
            options: of a request.
            faults: what was found before; it is raised with the rest.

        Raises:
            DecodekitError: as `LLM.generate` raises it.
        """
        if isinstance(options.seed, Iterable):
            faults.append(OptionError("a request has one seed", at="seed", hint="an integer"))
        held: list[object] = []
        key = _key({**options.keywords(), "seed": options.seed is None}, held)
        with self._lock:
            known = None if faults else self._plans.find(key)
        if known is not None:
            if options.seed is not None:
                check_seed(options.seed, faults)
                raise_faults(faults)
            return known[:2]
        plan = self._llm.plan(options, faults)
        if isinstance(plan.contrast, Guidance) and plan.contrast.num_prompts not in (None, 1):
            cause = f"{plan.contrast.num_prompts} negative prompts for one prompt"
            raise OptionError(cause, at="negative_prompt")
        key_of_batch = _key(
            {**options.keywords(), "seed": None, "max_new_tokens": None, "stop": None, **_OF_PROMPTS}, held
        )
        num_bytes = 0 if plan.grammar is None else plan.grammar.constraint.num_bytes
        with self._lock:
            batch_key = self._batch_keys.keep(key_of_batch, (plan.batch_key, held), num_bytes)[0]
        plan, decoder = self._with_decoder(replace(plan, batch_key=batch_key))
        with self._lock:
            return self._plans.keep(key, (plan, decoder, held), num_bytes)[:2]

    def _with_decoder(self, plan: Plan) -> tuple[Plan, Decoder[Any]]:
        """A plan and its decoder: one for all single texts of a model, one for each search.

        Equal contrasts have one model, so that their requests share rows.

        Raises:
            OptionError: the search decodes in a way of its own.
        """
        search: Any = plan.search
        if search is not None:
            if not hasattr(search, "decoder"):
                cause = f"{search!r:.60} decodes in a way of its own, which an engine cannot share its rows with"
                raise OptionError(cause, at="strategy", hint="LLM.generate; or a strategy.searching.Searching")
            return plan, search.decoder(plan.model, plan)
        with self._lock:
            known = next((model for contrast, model in self._models if _is_equal(contrast, plan.contrast)), None)
            if known is None:
                known = plan.model
                self._models = [*self._models[-_MANY_CONTRASTS:], (plan.contrast, known)]
            decoder = next((one for one in self._texts if one.model is known), None)
            if decoder is None:
                decoder = Texts(known)
                self._texts = [*self._texts[-_MANY_CONTRASTS:], decoder]
        return replace(plan, model=known), decoder


def _is_equal(one: object, other: object) -> bool:
    """Whether two values are the same; those that cannot be compared are not."""
    try:
        return one is other or bool(one == other)
    except Exception:  # tensors in them, say
        return False


def _key(value: Any, held: list[object]) -> Hashable:
    """Something hashable that is equal for equal options; what has no hash is named by its identity, and held."""
    if isinstance(value, Mapping):
        return "mapping", tuple((name, _key(one, held)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(_key(one, held) for one in value)
    try:
        hash(value)
    except TypeError:
        held.append(value)
        return "object", id(value)
    return type(value).__name__, value
