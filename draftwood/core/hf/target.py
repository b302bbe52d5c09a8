"""A Hugging Face causal LM as a target: trees in, logits and tapped features out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.core import devices
from draftwood.core.errors import RequestError, TreeError, UnsupportedTarget
from draftwood.core.hf import attention, checks, parallel
from draftwood.core.hf.cache import ShapeProbe, TreeCache
from draftwood.core.hf.graphs import Mode, Scored, wanted
from draftwood.core.hf.masks import Masks, kind_windows, layer_kinds
from draftwood.core.hf.parallel import whole
from draftwood.core.hf.rows import Rows
from draftwood.core.hf.taps import Taps, decoder_of, side_by_side
from draftwood.core.hf.versions import accepts, cache_keyword, text_config
from draftwood.core.interfaces.controller import CostProbe
from draftwood.core.interfaces.target import Target, TargetSession
from draftwood.core.kernels.graphs import Capturing
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.processes import same_on_all_ranks
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded


class HFSession(TargetSession):
    """One request's K/V, and what it wants tapped."""

    def __init__(
        self, target: "HFTarget", taps: Taps, cache: TreeCache, kernels: Kernels | None
    ) -> None:
        self.target, self.taps, self.cache, self.kernels = target, taps, cache, kernels
        # Depths of the nodes whose rows lie behind the committed ones: those a commit may keep.
        self.behind = torch.empty(0, dtype=torch.int64)

    @property
    def pending(self) -> int:
        """Nodes of the last forward, and of what deepened it since, that a commit may keep."""
        return len(self.behind)

    @property
    def length(self) -> int:
        return self.cache.length

    def prefill(self, ids: Sequence[int]) -> Forwarded:
        if self.length:
            raise RequestError("a prompt can only be prefilled into a fresh session")
        if not ids:
            raise RequestError("the prompt is empty; a model needs at least one token to go on")
        return self.target._prefill(self, ids)

    def commit(self, path: Sequence[int]) -> None:
        if not path or path[0] != 0 or path[-1] >= self.pending:
            raise TreeError(
                f"cannot commit nodes {list(path)} of a forward over {self.pending}: a path "
                "starts at the anchor (0) and stays inside the last forward"
            )
        with torch.inference_mode():
            self.cache.commit(path, self.kernels)
        self.drop()

    def drop(self, keep: int = 0) -> None:
        """Give up the rows behind the committed ones, but the first `keep`."""
        self.behind = self.behind[:keep]
        self.cache.keep(len(self.behind))

    def fork(self) -> "HFSession":
        with torch.inference_mode():
            return HFSession(self.target, self.taps, self.cache.fork(), self.kernels)


class HFTarget(Target):
    """Any `AutoModelForCausalLM` made of attention layers, with sdpa or eager attention.

    model: in evaluation mode; it is only called, never changed. name: what reports call it.
    vocab_limit: tokens the tokenizer knows; logits rows beyond them are padding and get -inf.
    prefill_chunk: most prompt tokens per forward. check: run `checks.self_check` once.
    split: whether processes hold parts of its layers, so that all must do the same forwards.
    graphs: whether forwards of sessions with kernels are captured, as `hf.graphs` says.

    Raises UnsupportedTarget, with the reason, for what cannot be rolled back to an accepted
    prefix (recurrent layers, encoder-decoders, quantised caches) or cannot score a tree.
    Tensors it returns are inference tensors: they cannot be written to outside inference mode.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str | None = None,
        vocab_limit: int | None = None,
        prefill_chunk: int = 1024,
        check: bool = True,
        graphs: Mode = "off",
    ) -> None:
        checks.refuse_unsupported(model)
        self.model, self.config = model, text_config(model)
        self.name = name or self.config.name_or_path or type(model).__name__
        self.vocab_limit, self.prefill_chunk = vocab_limit, prefill_chunk
        self.tokenizer: Any | None = None
        self.split = parallel.is_split(model)
        self.device = model.get_input_embeddings().weight.device
        self.dtype = model.dtype
        self.layers: int = self.config.num_hidden_layers
        self.max_context = checks.position_limit(self.config)
        self.eos_token_ids = checks.eos_token_ids(model)
        self._cache_keyword = cache_keyword(model)
        self._keeps_logits = accepts(model, "logits_to_keep")
        self._kernels: set[type] = set()  # those that passed their check here
        windows = kind_windows(self.config)
        self._masks = Masks(windows, len(windows) > 1, self.dtype, self.device)
        probe = ShapeProbe()
        with torch.inference_mode(), checks.refused_if_it_raises(self.name):
            token = torch.zeros(1, dtype=torch.int64)
            logits = self._call(token, token, probe, None)
        self.vocab_size: int = logits.shape[-1]
        self.layout = probe.layout([windows[kind] for kind in layer_kinds(self.config)])
        self.graphs = wanted(self, graphs)
        if check:
            checks.self_check(self)

    def limit_vocabulary(self, tokens: int) -> None:
        """Never give ids from `tokens` on a chance: they are padding without a token."""
        self.vocab_limit = tokens if tokens < self.vocab_size else None

    def open(self, taps: Sequence[int] = (), kernels: Kernels | None = None) -> HFSession:
        tapped = Taps(decoder_of(self.model), taps, self.layers)
        if kernels is not None and type(kernels) not in self._kernels:
            self._kernels.add(type(kernels))
            try:
                checks.kernel_check(self, kernels)
            except UnsupportedTarget:
                self._kernels.remove(type(kernels))
                raise
        cache = TreeCache(self.layout, whole=kernels is not None)
        if self.graphs is not None and kernels is not None:
            self.graphs.shelf.lend(cache)
        return HFSession(self, tapped, cache, kernels)

    def forward(self, work: Sequence[tuple[TargetSession, TokenTree]]) -> Sequence[Forwarded]:
        if len(work) != 1:
            raise NotImplementedError(
                f"a forward over {len(work)} requests: this version scores one at a time"
            )
        (session, tree), *_ = work
        assert isinstance(session, HFSession)
        if self.split and not same_on_all_ranks([*tree.token_list, *tree.parent_list]):
            raise TreeError(
                "the processes that share this target grew different trees: they must decode the "
                "same prompt with the same options, on devices of one kind"
            )
        session.drop()  # if this forward fails, the rows of the last one are spoilt
        with torch.inference_mode():
            scored = self._replayed(session, tree)
            logits, parts = scored or self._score(session, Rows.of(tree), 0)
            session.behind = tree.depths
            return [Forwarded(logits, side_by_side(parts, self.device))]

    def _replayed(self, session: HFSession, tree: TokenTree) -> Scored | None:
        """The forward of a tree at a fixed size, None where none is captured."""
        if self.graphs is None or session.kernels is None:
            return None
        self._check_depths(session, tree.depths)
        scored = self.graphs.score(session, tree)
        if scored is not None:
            self._forbid_padding(scored[0])
        return scored

    def deepen(self, session: HFSession, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        """(n, V) logits after n more nodes, behind those of the calls since the last commit.

        For a model that drafts: a tree is scored level by level, each node once. tokens, depths:
        (n,) int64 on the host. visible: (n, m + n) bool on the host, which of the m nodes so far
        and of these each one sees, itself included. `forward` starts anew, as a commit does.
        """
        with torch.inference_mode():
            session.cache.keep(session.pending)
            behind = torch.cat([session.behind, depths])
            logits, _ = self._score(session, Rows(tokens, behind, seen=visible), 0)
            session.behind = behind
            return logits

    def _prefill(self, session: HFSession, ids: Sequence[int]) -> Forwarded:
        """The prompt in chunks; only the last token's logits are computed."""
        tokens = torch.tensor(ids)
        self._check_room(len(ids) - 1)
        features = []
        with torch.inference_mode():
            session.cache.reserve(len(ids))
            for chunk in tokens.split(self.prefill_chunk):
                logits, parts = self._score(session, Rows.chain(chunk), 1)
                session.cache.advance(len(chunk))
                features.append(side_by_side(parts, self.device))
            tapped = [part for part in features if part is not None]
            return Forwarded(logits, torch.cat(tapped) if tapped else None)

    def _score(self, session: HFSession, rows: Rows, keep: int) -> tuple[Tensor, list[Tensor]]:
        """One forward of rows behind the session's context: (n, V) logits (the last `keep` rows
        if any), and the tapped outputs (1, n, H)."""
        length, depths = session.length, rows.own_depths
        self._check_depths(session, depths)
        session.cache.reserve(len(rows.tokens))
        with session.taps.recording() as parts:
            logits = self._attended(session, rows, length, keep)
        self._forbid_padding(logits)
        return logits, parts

    def _forbid_padding(self, logits: Tensor) -> None:
        if self.vocab_limit is not None:
            logits[:, self.vocab_limit :] = -torch.inf

    def _check_depths(self, session: HFSession, depths: Tensor) -> None:
        if devices.reads_without_sync(depths.device):  # who grew it elsewhere knew the limit
            self._check_room(session.length + int(depths.max()))

    def _attended(self, session: HFSession, rows: Rows, length: int, keep: int) -> Tensor:
        """The model's call with a mask of its own kind, or with the session's kernels."""
        positions = rows.own_depths + length
        if session.kernels is None:
            behind = None if rows.seen is None else rows.depths
            mask = self._masks.build(rows.visible, rows.own_depths, length, behind)
            return self._call(rows.tokens, positions, session.cache, mask, keep)
        work = attention.TreeAttention(
            session.kernels,
            rows.mask(session.kernels, length, self.device),
            [shape.window for shape in self.layout],
        )
        with attention.running(self.config):
            options = {attention.KEYWORD: work}
            logits = self._call(rows.tokens, positions, session.cache, None, keep, options)
        work.check(self.layers, self.name)
        return logits

    def _call(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
        mask: Any,
        keep: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        options = {self._cache_keyword: cache, **(options or {})}
        if keep and self._keeps_logits:
            options["logits_to_keep"] = keep
        output = self.model(
            input_ids=tokens[None].to(self.device),
            position_ids=positions[None].to(self.device),
            attention_mask=mask,
            use_cache=True,
            **options,
        )
        return output.logits[0, -keep:] if keep else output.logits[0]

    def _check_room(self, last: int) -> None:
        if self.max_context is not None and last >= self.max_context:
            raise RequestError(
                f"position {last} is past the {self.max_context} that {self.name} can hold"
            )

    def vocabulary(self) -> Mapping[str, int] | None:
        listed = getattr(self.tokenizer, "get_vocab", None)
        return listed() if listed else None

    def costs(self, clock: Callable[[], float], kernels: Kernels | None = None) -> CostProbe:
        from draftwood.core.hf.costs import HFCosts

        return HFCosts(self, clock, kernels)

    def traced_flops(self) -> Callable[[int, int], float]:
        from draftwood.core.hf.flops import TracedFlops

        return TracedFlops(self)

    def capturing(self) -> Capturing | None:
        if self.graphs is None:
            return None
        return Capturing(self.graphs.capturing.capture, self.graphs.capturing.must)

    def embedding_weight(self) -> Tensor:
        return whole(self.model.get_input_embeddings().weight, self.device)

    def head_weight(self) -> Tensor:
        return whole(self.model.get_output_embeddings().weight, self.device)
