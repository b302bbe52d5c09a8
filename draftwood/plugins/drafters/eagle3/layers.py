"""The layers of an EAGLE-3 drafter: Llama's or Qwen3's, the first one fed by token and feature."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.layers import GatedMLP, Turn, rotate
from draftwood.plugins.drafters.eagle3.config import Eagle3Config


class Attention(nn.Module):
    """Grouped-query attention over cached rows; heads are normed where the config says so.

    width: of the input, which for the first layer is token and feature side by side.
    """

    def __init__(self, config: Eagle3Config, width: int) -> None:
        super().__init__()
        d, bias, eps = config.hidden_size, config.attention_bias, config.rms_norm_eps
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.groups = self.heads // self.kv_heads
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, d, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps) if config.head_norms else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps) if config.head_norms else None

    def forward(
        self, x: Tensor, turn: Turn, cache: ContextCache, layer: int, mask: Tensor | None
    ) -> Tensor:
        """Rows (n, width) -> (n, d); their K/V are written behind the rows that `cache` holds.

        mask: (n, length + n), True where seen; None if every row sees every column. The queries
        of a group are laid side by side as rows of their one key head, so K and V are never
        repeated.
        """
        rows = x.shape[0]
        q = self.queries(x, turn)
        k, v = self.keys_values(x, turn)
        keys, values = cache.write(layer, k.transpose(0, 1), v.transpose(0, 1))
        q = q.transpose(0, 1).reshape(self.kv_heads, -1, self.head_dim)
        if mask is not None:
            mask = mask.repeat(self.groups, 1)
        out = F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)
        out = out.view(self.heads, rows, self.head_dim).transpose(0, 1)
        return self.o_proj(out.reshape(rows, -1))

    def queries(self, x: Tensor, turn: Turn) -> Tensor:
        """(..., width) -> (..., heads, head_dim), rotated."""
        return self._turned(self.q_proj(x), self.q_norm, turn)

    def keys_values(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """(..., width) -> keys (rotated) and values, (..., kv_heads, head_dim)."""
        values = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        return self._turned(self.k_proj(x), self.k_norm, turn), values

    def _turned(self, x: Tensor, norm: nn.Module | None, turn: Turn) -> Tensor:
        """(..., heads * head_dim) -> (..., heads, head_dim), normed if asked, and rotated."""
        x = x.unflatten(-1, (-1, self.head_dim))
        return rotate(x if norm is None else norm(x), turn)


class Layer(nn.Module):
    """Attention and MLP, each normed and residual."""

    def __init__(self, config: Eagle3Config, width: int | None = None) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.self_attn = Attention(config, width or d)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.mlp = GatedMLP(d, config.intermediate_size, config.activation, config.mlp_bias)

    def forward(
        self, x: Tensor, turn: Turn, cache: ContextCache, layer: int, mask: Tensor | None
    ) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.finish(x, self.self_attn(self.input_layernorm(x), turn, cache, layer, mask))

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """What follows attention, (..., d)."""
        x = residual + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class FirstLayer(Layer):
    """The layer that joins each token's embedding with the feature of the position before it."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_before_residual = config.norm_before_residual

    def join(
        self,
        embeds: Tensor,
        feature: Tensor,
        turn: Turn,
        cache: ContextCache,
        mask: Tensor | None,
    ) -> Tensor:
        """embeds, feature: (n, d) -> (n, d)."""
        both, residual = self.inputs(embeds, feature)
        return self.finish(residual, self.self_attn(both, turn, cache, 0, mask))

    def inputs(self, embeds: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Both (..., d) -> what attention reads (..., 2d), and what its output is added to."""
        normed = self.hidden_norm(feature)
        both = torch.cat((self.input_layernorm(embeds), normed), -1)
        return both, normed if self.norm_before_residual else feature
