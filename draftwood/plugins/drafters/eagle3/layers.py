"""The layers of an EAGLE-3 drafter: Llama's or Qwen3's; the first reads token and feature."""

import torch
from torch import Tensor, nn

from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.layers import CosSin, GatedMLP, GroupedQueryAttention
from draftwood.plugins.drafters.eagle3.config import Eagle3Config


class Attention(GroupedQueryAttention):
    """Attention over cached rows."""

    def forward(
        self, x: Tensor, cos_sin: CosSin, cache: ContextCache, layer: int, mask: Tensor | None
    ) -> Tensor:
        """Rows (n, width) -> (n, d); their K/V are written behind the rows that `cache` holds.

        mask: (n, length + n), True where a row attends to a column; None for everywhere.
        """
        k, v = self.keys_values(x, cos_sin)
        keys, values = cache.write(layer, k.transpose(0, 1), v.transpose(0, 1))
        return self.attend(self.queries(x, cos_sin), keys, values, mask)


class Layer(nn.Module):
    """Attention and MLP, each with norm and residual."""

    def __init__(self, config: Eagle3Config, width: int | None = None) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.self_attn = Attention(config, width, config.head_norms)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.mlp = GatedMLP(d, config.intermediate_size, config.activation, config.mlp_bias)

    def forward(
        self, x: Tensor, cos_sin: CosSin, cache: ContextCache, layer: int, mask: Tensor | None
    ) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.finish(x, self.self_attn(self.input_layernorm(x), cos_sin, cache, layer, mask))

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The part after attention, (..., d)."""
        x = residual + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class FirstLayer(Layer):
    """The layer that reads each token's embedding and the feature of the position before it."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm_before_residual = config.norm_before_residual

    def join(
        self,
        embeds: Tensor,
        feature: Tensor,
        cos_sin: CosSin,
        cache: ContextCache,
        mask: Tensor | None,
    ) -> Tensor:
        """embeds, feature: (n, d) -> (n, d)."""
        both, residual = self.inputs(embeds, feature)
        return self.finish(residual, self.self_attn(both, cos_sin, cache, 0, mask))

    def inputs(self, embeds: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Both (..., d) -> the input of attention (..., 2d), and the residual."""
        normed = self.hidden_norm(feature)
        both = torch.cat((self.input_layernorm(embeds), normed), -1)
        return both, normed if self.norm_before_residual else feature
