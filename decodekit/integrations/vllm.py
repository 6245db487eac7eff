"""decodekit's masks inside of vLLM: a logits processor of the engine for all requests.

    $ vllm serve MODEL --logits-processors decodekit.integrations.vllm:VllmProcessor

    class Invoices(VllmProcessor):                          # one constraint for every request
        constraint = Invoice

    LLM(model="...", logits_processors=[Invoices])

Two interfaces are spoken. That of ``vllm.v1.sample.logits_processor`` (vLLM 0.11 and later, with the first model
runner): a batch has a place for each request; before a step vLLM tells which requests have gone, come and moved, in
this order, and then hands over the logits of all places::

    update_state(removed=[1], added=[(1, params, prompt, text)], moved=[(2, 0, one way)])
    apply(logits)                                           # [requests, V]

And that of ``vllm.v1.worker.gpu.sample.logits_processor`` (vLLM 0.32, the second model runner): a request keeps its
slot, and a row of logits says by its context which slot it is of, and how many draft tokens stand before it::

    add_request(slot, params)
    apply(logits, context)                                  # [rows, V]; the tokens are in arrays by slot
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from torch import Tensor

from decodekit.integrations.request_constraints import EngineRequest, check_request, is_asked

_INTERFACES: Final = ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor")


class VllmProcessor:
    """The constraint of each request, or of all of them, as vLLM's ``LogitsProcessor``.

    vLLM takes subclasses of its own class alone. This one and its subclasses are registered as virtual ones when they
    are made, if vLLM was imported before; `register` does it later.

    Args:
        vllm_config: vLLM's; its ``model_config`` names the tokenizer.
        device: of the first interface, not used; of the second its ``LogitsProcRequestState``, the tokens by slot.
        is_pin_memory: not used.

    Attributes:
        constraint: of requests that name none; None leaves these alone.
        tokenizer: of the model; None loads the one that vLLM's configuration names.
    """

    constraint: ClassVar[Any] = None
    tokenizer: ClassVar[Any] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(cls)

    def __init__(self, vllm_config: Any, device: Any = None, is_pin_memory: bool = False) -> None:
        self._tokenizer = self.tokenizer
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            theirs = vllm_config.model_config
            self._tokenizer = AutoTokenizer.from_pretrained(
                theirs.tokenizer, trust_remote_code=bool(theirs.trust_remote_code)
            )
        self._slots = device
        self._requests: dict[int, EngineRequest] = {}  # by place or slot

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a constraint that cannot be used."""
        check_request(getattr(sampling_params, "extra_args", None), cls.constraint, cls.tokenizer)

    def is_argmax_invariant(self) -> bool:
        """No: what is forbidden may be the likeliest token."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests that have gone, come and moved.

        Args:
            batch_update: vLLM's ``BatchUpdate``; None if the batch is the same.
        """
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._requests.pop(place, None)
        for place, params, _, text in batch_update.added:
            self._begin(place, params, text)
        for source, target, direction in batch_update.moved:
            moved, other = self._requests.pop(source, None), self._requests.pop(target, None)
            if moved is not None:
                self._requests[target] = moved
            if other is not None and direction.name == "SWAP":
                self._requests[source] = other

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take a request into a slot, the one before it out; whether its logits are masked. (Second interface.)"""
        self._begin(req_idx, sampling_params, ())
        return req_idx in self._requests

    def _begin(self, place: int, params: Any, text: Sequence[int]) -> None:
        self._requests.pop(place, None)
        arguments = getattr(params, "extra_args", None)
        if is_asked(arguments, self.constraint):
            self._requests[place] = EngineRequest(arguments, self.constraint, self._tokenizer, text)

    def apply_staged_writes(self) -> None:
        """Nothing is staged. (Second interface.)"""

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        """The logits, -inf for what may not follow; changed in place.

        Args:
            logits: [requests, V]; [rows, V] with a context.
            ctx: vLLM's ``LogitsContext`` of the second interface.
        """
        if ctx is None:
            for place, one in self._requests.items():
                one.mask(logits[place])
            return logits
        # Rows stand in any order of requests, and those of one request in the order of its drafts.
        if not any(slot in self._requests for slot in ctx.idx_mapping_np.tolist()):
            return logits  # before anything is copied from the device
        slots, inputs = ctx.expanded_idx_mapping.tolist(), ctx.input_ids.tolist()
        places, numbers = ctx.pos.tolist(), ctx.expanded_local_pos.tolist()
        texts: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            request = self._requests.get(slot)
            if request is None:
                continue
            if numbers[row] == 0:  # the tokens that are settled end where this row reads
                start = int(self._slots.prompt_len.np[slot])
                texts[slot] = self._slots.all_token_ids.gpu[slot, start : places[row] + 1].tolist()
            else:
                texts[slot] = [*texts[slot], inputs[row]]
            request.text = texts[slot]
            request.mask(logits[row])
        return logits


def register(kind: type) -> bool:
    """Make a class a virtual subclass of vLLM's, as far as vLLM is loaded; whether it is one."""
    modules = [sys.modules.get(name) for name in _INTERFACES]
    for module in modules:
        if module is not None:
            module.LogitsProcessor.register(kind)
    return any(modules)


register(VllmProcessor)
