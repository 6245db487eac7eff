"""decodekit's masks inside of SGLang: a custom logit processor, the constraint in the parameters of each request.

    $ python -m sglang.launch_server --model-path MODEL --enable-custom-logit-processor

    {"text": ..., "custom_logit_processor": SglangProcessor.to_str(),
     "sampling_params": {"custom_params": {"decodekit": {"type": "object", ...}}}}

The interface is that of ``sglang.srt.sampling.custom_logit_processor`` in SGLang 0.5, which adds the request itself to
its parameters as ``__req__``.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor

from decodekit.errors import OptionError
from decodekit.integrations.request_constraints import EngineRequest, is_asked


class SglangProcessor:
    """The constraint of each request as SGLang's ``CustomLogitProcessor``.

    Attributes:
        tokenizer: of the model; None takes that of the request.
    """

    tokenizer: ClassVar[Any] = None

    def __init__(self) -> None:
        self._requests: WeakKeyDictionary[Any, EngineRequest] = WeakKeyDictionary()

    @classmethod
    def to_str(cls) -> str:
        """The argument of a request: the name of this class, which the server has to be able to import."""
        return json.dumps({"callable": pickle.dumps(cls).hex()})

    def __call__(self, logits: Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> Tensor:
        """The logits [N, V], -inf for what may not follow; changed in place.

        Args:
            logits: of N requests.
            custom_param_list: the parameters of each.

        Raises:
            OptionError: not one row for each request, as under speculative decoding; or a request without itself.
        """
        if custom_param_list is None:
            return logits
        if len(custom_param_list) != len(logits):
            cause = f"{len(logits)} rows of logits for {len(custom_param_list)} requests"
            raise OptionError(cause, at="custom_param_list", hint="SGLang without speculative decoding")
        for row, parameters in zip(logits, custom_param_list, strict=True):
            if is_asked(parameters):
                self._request(parameters).mask(row)
        return logits

    def _request(self, parameters: dict[str, Any]) -> EngineRequest:
        theirs = parameters.get("__req__")
        if theirs is None:
            raise OptionError("the parameters of a request do not hold it", at="__req__", hint="SGLang 0.4.10 or newer")
        if theirs not in self._requests:
            tokenizer = self.tokenizer if self.tokenizer is not None else theirs.tokenizer
            self._requests[theirs] = EngineRequest(parameters, None, tokenizer, theirs.output_ids)
        self._requests[theirs].text = theirs.output_ids
        return self._requests[theirs]
