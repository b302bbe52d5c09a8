"""The network of a drafter: loading a checkpoint, its vocabulary and its output head."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import torch
from attrs import frozen
from torch import Tensor, nn

from draftwood.core.errors import CheckpointError
from draftwood.core.interfaces import Target
from draftwood.core.proposals import Vocabulary
from draftwood.plugins.drafters.common.config import DrafterConfig
from draftwood.plugins.drafters.common.weights import check_target_ids, fit, read_weights, renamed


@frozen(eq=False)
class Shared:
    """Tensors that a drafter uses beside its network.

    Attributes:
        embedding: (V, H) unscaled embedding rows, the checkpoint's own or the target's.
        head: The target's (V, H) output head; None if the checkpoint has its own.
        vocabulary: Maps the draft vocabulary to the target's.
    """

    embedding: Tensor
    head: Tensor | None
    vocabulary: Vocabulary


class DrafterModel(nn.Module):
    """Base of drafters' networks.

    Attributes:
        config_class: Reads the config of such a checkpoint.
        ignored: Prefixes of parameters that repeat the target's or follow from others.
        layers: Number of layers whose K/V a `ContextCache` holds, with `kv_heads` and `head_dim`.
        fc: Projection of the tapped target states, side by side, to the drafter's width.
        embed_tokens: The checkpoint's own embedding; None where the target's is used.
        lm_head: The checkpoint's own output head; None where the target's is used.
        d2t: (V_draft,) int64 offsets, target id - draft id, of a draft vocabulary that differs from
            the target's; else None.
    """

    config_class: ClassVar[type[DrafterConfig]]
    ignored: ClassVar[tuple[str, ...]] = ("verifier_norm.", "verifier_lm_head.", "t2d")
    config: DrafterConfig
    fc: nn.Linear

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.layers, self.kv_heads = config.num_layers, config.num_kv_heads
        self.head_dim = config.head_dim
        self.embed_tokens: nn.Embedding | None = None
        self.lm_head: nn.Linear | None = None
        self.d2t: Tensor | None
        self.register_buffer("d2t", None)

    @classmethod
    def from_folder(cls, folder: Path | str, allow_pickle: bool = False) -> Self:
        """Config and weights of a checkpoint, in the dtype of the weights, on the CPU.

        Raises:
            CheckpointError: Names every missing or unexpected parameter.
        """
        folder = Path(folder)
        with torch.device("meta"):
            model = cls(cls.config_class.from_file(folder))
        model.load_published(read_weights(folder, allow_pickle), folder)
        return model.eval()

    def load_published(self, published: Mapping[str, Tensor], folder: Path | str) -> None:
        """Replace the parameters by tensors under their published names.

        Raises:
            CheckpointError: Names `folder` and the tensors that do not fit.
        """
        config = self.config
        tensors = {
            name: tensor
            for published_name, tensor in published.items()
            if not (name := renamed(published_name, self._names)).startswith(self.ignored)
        }
        reduced = config.draft_vocab_size < config.vocab_size
        if reduced and not {"lm_head.weight", "d2t"} <= tensors.keys():
            raise CheckpointError(
                f"{folder}: a draft vocabulary of {config.draft_vocab_size} of "
                f"{config.vocab_size} tokens needs its own lm_head.weight and d2t"
            )
        with torch.device("meta"):
            if "embed_tokens.weight" in tensors:
                self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
            if "lm_head.weight" in tensors:
                self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
            if "d2t" in tensors:
                self.d2t = torch.empty(config.draft_vocab_size, dtype=torch.long)
        if "d2t" in tensors:
            tensors["d2t"] = tensors["d2t"].long()
            check_target_ids(tensors["d2t"], config.vocab_size, folder)
        fit(self, tensors, folder, self._published)

    def published_state(self) -> dict[str, Tensor]:
        """Parameters under their published names, each in its own memory."""
        return {
            self._published(name): tensor.detach().clone()
            for name, tensor in self.state_dict().items()
        }

    @property
    def _names(self) -> dict[str, str]:
        """Prefixes of published names, and of the names here."""
        return {}

    def _published(self, name: str) -> str:
        return renamed(name, {ours: theirs for theirs, ours in self._names.items()})

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    def share(self, target: Target) -> Shared:
        """The tensors to use with this target."""
        own = self.embed_tokens
        return Shared(
            target.embedding_weight() if own is None else own.weight,
            target.head_weight() if self.lm_head is None else None,
            Vocabulary(target.vocab_size, self.draft_to_target()),
        )

    def draft_to_target(self) -> Tensor | None:
        """(V_draft,) int64 target ids of the draft vocabulary; None if the two are the same."""
        if self.d2t is None:
            return None
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def output_weight(self, head: Tensor | None) -> Tensor:
        """(V_draft, d): the checkpoint's own head, else `head`, the target's."""
        weight = self.lm_head.weight if self.lm_head is not None else head
        if weight is None:
            raise CheckpointError(
                f"{self.config.source}: the checkpoint has no head of its own: pass the target's"
            )
        return weight
