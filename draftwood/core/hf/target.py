"""A Hugging Face causal LM as a target: trees in, logits and tapped features out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from draftwood.core.errors import RequestError, TreeError, UnsupportedTarget
from draftwood.core.hf.cache import TreeCache
from draftwood.core.hf.costs import HFCosts
from draftwood.core.hf.flops import TracedFlops
from draftwood.core.hf.graphs import Mode, choose_graphs
from draftwood.core.hf.head import embedding_weight, head_weight
from draftwood.core.hf.scorer import TreeScorer
from draftwood.core.hf.self_check import kernel_check, self_check
from draftwood.core.hf.session import PREFILL_CHUNK, HFSession
from draftwood.core.hf.supported import eos_token_ids, generation_defaults
from draftwood.core.hf.taps import Taps, decoder_of
from draftwood.core.interfaces.controller import CostProbe
from draftwood.core.interfaces.target import Target, TargetSession
from draftwood.core.kernels.capture import Capturing
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.processes import same_on_all_ranks
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded


class HFTarget(Target):
    """Any `AutoModelForCausalLM` made of attention layers, with sdpa or eager attention.

    Tensors that it returns are inference tensors: they cannot be written to outside inference
    mode.

    Args:
        model: in evaluation mode; it is only called, never changed.
        name: what reports call it.
        vocab_limit: number of tokens that the tokenizer has; logits beyond are padding.
        prefill_chunk: largest number of prompt tokens in one forward.
        check: score a tiny tree once, see `self_check`.
        graphs: whether forwards of sessions with kernels are captured, see `hf.graphs`.

    Attributes:
        tokenizer: the target's, if the caller has one.

    Raises:
        UnsupportedTarget: the model cannot be rolled back to an accepted prefix (recurrent
            layers, encoder-decoders, quantised caches) or cannot score a tree.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str | None = None,
        vocab_limit: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        check: bool = True,
        graphs: Mode = "off",
    ) -> None:
        self.scorer = TreeScorer(model, name=name, vocab_limit=vocab_limit)
        self.model, self.name = self.scorer.model, self.scorer.name
        self.prefill_chunk = prefill_chunk
        self.tokenizer: Any | None = None
        self.device, self.dtype = self.scorer.device, self.scorer.dtype
        self.vocab_size, self.layers = self.scorer.vocab_size, self.scorer.layers
        self.max_context = self.scorer.max_context
        self.eos_token_ids = eos_token_ids(self.model)
        self.generation_defaults = generation_defaults(self.model)
        self._checked_kernels: set[type] = set()
        self.graphs = choose_graphs(self.scorer, graphs)
        if check:
            self_check(self, self.scorer)

    def limit_vocabulary(self, tokens: int) -> None:
        """Give ids from `tokens` on probability zero: they are padding without a token."""
        self.scorer.vocab_limit = tokens if tokens < self.vocab_size else None

    def open(self, taps: Sequence[int] = (), kernels: Kernels | None = None) -> HFSession:
        """A session whose forwards tap these layers and attend by `kernels`.

        Raises:
            UnsupportedTarget: the kernels do not compute this model's attention.
            RequestError: the model was put into training mode since it was loaded.
        """
        if self.model.training:
            raise RequestError(
                f"{self.name} is in training mode, in which dropout makes its distribution random; "
                "call model.eval()"
            )
        tapped = Taps(decoder_of(self.model), taps, self.layers)
        if kernels is not None and type(kernels) not in self._checked_kernels:
            self._checked_kernels.add(type(kernels))  # the check opens a session with them
            try:
                kernel_check(self, self.scorer, kernels)
            except UnsupportedTarget:
                self._checked_kernels.remove(type(kernels))
                raise
        cache = TreeCache(self.scorer.layout, whole=kernels is not None)
        if self.graphs is not None and kernels is not None:
            self.graphs.pool.lend(cache)
        return HFSession(self.scorer, tapped, cache, kernels, self.graphs, self.prefill_chunk)

    def forward(self, work: Sequence[tuple[TargetSession, TokenTree]]) -> Sequence[Forwarded]:
        if len(work) != 1:
            raise NotImplementedError(
                f"a forward over {len(work)} requests: this version scores one at a time"
            )
        (session, tree), *_ = work
        assert isinstance(session, HFSession)
        if self.scorer.split and not same_on_all_ranks([*tree.token_list, *tree.parent_list]):
            raise TreeError(
                "the processes that share this target grew different trees: they must decode the "
                "same prompt with the same options, on devices of one kind"
            )
        return [session.forward(tree)]

    def vocabulary(self) -> Mapping[str, int] | None:
        get_vocab = getattr(self.tokenizer, "get_vocab", None)
        return get_vocab() if get_vocab else None

    def costs(self, clock: Callable[[], float], kernels: Kernels | None = None) -> CostProbe:
        captured = self.graphs if kernels is not None else None
        return HFCosts(self.scorer, lambda: self.open(kernels=kernels), clock, kernels, captured)

    def traced_flops(self) -> Callable[[int, int], float]:
        return TracedFlops(self.scorer)

    def capturing(self) -> Capturing | None:
        if self.graphs is None:
            return None
        return Capturing(self.graphs.capturing.capture, self.graphs.capturing.must)

    def embedding_weight(self) -> Tensor:
        return embedding_weight(self.model.get_input_embeddings(), self.device)

    def head_weight(self) -> Tensor:
        head = self.model.get_output_embeddings()
        return head_weight(head, self.scorer.config.hidden_size, self.dtype, self.device)
