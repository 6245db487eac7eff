"""The Llama network as one small module: the same mathematics and parameter names as transformers' LlamaForCausalLM.

The library's own module builds masks and caches that training does not need; this one compiles to few kernels and
returns hidden states, so that the vocabulary projection is paid only where there is a loss.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a Llama network with tied embeddings and as many key heads as query heads."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size], computed in float32."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def rotary_table(shape: NetworkShape, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary angles, each [length, head_dim] (Su et al. 2021, in the half-split layout of Llama)."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_theta**-half)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys [batch, heads, length, head_dim] by their positions."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Attention(nn.Module):
    """Causal multi-head attention with rotary positions."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, length, hidden] -> [batch, length, hidden]."""
        batch, length, hidden = x.shape
        split = (batch, length, self.num_heads, hidden // self.num_heads)
        q = rotate(self.q_proj(x).view(split).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(split).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(split).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, length, hidden] -> [batch, length, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Network(nn.Module):
    """The trunk: token ids [batch, length] -> normalised hidden states [batch, length, hidden]."""

    def __init__(self, shape: NetworkShape, max_length: int = 1024) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        cos, sin = rotary_table(shape, max_length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # Residual writers start small, so that depth does not blow up the stream (GPT-2).
                is_writer = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * self.shape.num_layers) ** -0.5 if is_writer else 1.0
                nn.init.normal_(parameter, std=scale * self.shape.hidden_size**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, length] -> [batch, length, hidden]."""
        length = tokens.shape[1]
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[:length].to(x.dtype), self.sin[:length].to(x.dtype)  # type: ignore[index]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)  # type: ignore[no-any-return]

    def project(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> logits [..., vocab], with the tied embedding."""
        return F.linear(hidden, self.embed_tokens.weight)

    def transformers_state(self) -> dict[str, Tensor]:
        """Weights under the names of transformers' LlamaForCausalLM, float32 on the CPU (the head is tied)."""
        return {f"model.{name}": value.detach().float().cpu().contiguous() for name, value in self.state_dict().items()}

    def transformers_config(self, max_length: int, eos_id: int, pad_id: int) -> dict[str, object]:
        """Keyword arguments of transformers' LlamaConfig for this shape."""
        sizes = asdict(self.shape)
        return {
            "vocab_size": sizes["vocab_size"],
            "hidden_size": sizes["hidden_size"],
            "num_hidden_layers": sizes["num_layers"],
            "num_attention_heads": sizes["num_heads"],
            "num_key_value_heads": sizes["num_heads"],
            "head_dim": self.shape.head_dim,
            "intermediate_size": sizes["intermediate_size"],
            "rope_theta": sizes["rope_theta"],
            "rms_norm_eps": sizes["norm_eps"],
            "hidden_act": "silu",
            "max_position_embeddings": max_length,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": None,
            "eos_token_id": eos_id,
            "pad_token_id": pad_id,
        }
