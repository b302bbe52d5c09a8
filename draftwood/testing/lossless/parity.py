"""Greedy text of a pipeline beside plain decoding's, with the target's margin where they part."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from draftwood.core.generation import Generation, Pipeline
from draftwood.core.options import Sampling
from draftwood.core.proposals import LookupPaths, Proposal
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import ChainOptions
from draftwood.plugins.verifiers.match import Match
from draftwood.testing.lossless.report import Speculation
from draftwood.testing.lossless.scoring import scores_along
from draftwood.testing.oracle import OracleDrafter, Prefix

BOUNDS: Mapping[str, float] = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 5e-3,
    "bfloat16": 4e-2,
}
"""By dtype: two logits nearer than this, relative to the largest, may change places from one
shape of forward to another."""

CHUNKS = (4, 16)
"""Tokens a forward of the control."""


@frozen
class Difference:
    """Where two greedy texts first part. margin: between the target's two best logits there;
    bound: below which that may happen. tokens: the pipeline's, plain decoding's."""

    prompt: int
    position: int
    margin: float
    bound: float
    tokens: tuple[int, int]

    @property
    def within(self) -> bool:
        return self.margin <= self.bound

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "position": self.position,
            "margin": self.margin,
            "bound": self.bound,
            "within": self.within,
            "pipeline": self.tokens[0],
            "plain": self.tokens[1],
        }


@frozen
class Parity:
    """One dtype. tokens: of plain decoding. differences: of the pipeline, a prompt at most once;
    control: of plain decoding with other chunk sizes, which shows what the dtype alone does."""

    dtype: str
    prompts: int
    tokens: int
    differences: tuple[Difference, ...]
    control: tuple[Difference, ...]
    speculation: Speculation = field(factory=Speculation)

    @property
    def biased(self) -> bool:
        return any(not difference.within for difference in self.differences)

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "tokens": self.tokens,
            "differences": [each.as_dict() for each in self.differences],
            "control": {
                "chunk_sizes": list(CHUNKS),
                "differences": [each.as_dict() for each in self.control],
            },
        }


def check_parity(
    pipeline: Pipeline, prompts: Sequence[Sequence[int]], tokens: int, dtype: str
) -> Parity:
    """Decode each prompt greedily with `pipeline`, plainly, and plainly in other chunk sizes."""
    plain = Pipeline(pipeline.target, generation=pipeline.generation)
    greedy: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": tokens, "seed": 0}
    differences, control, total, speculation = [], [], 0, Speculation()
    for number, prompt in enumerate(prompts):
        wanted = plain.generate(prompt, **greedy)
        found = pipeline.generate(prompt, **greedy)
        speculation += Speculation.of(found)
        total += len(wanted.tokens)
        differences += _first(pipeline, number, prompt, found, wanted, dtype)
        for size in CHUNKS:
            again = replaying(pipeline, prompt, wanted.tokens, size).generate(prompt, **greedy)
            control += _first(pipeline, number, prompt, again, wanted, dtype)
    return Parity(dtype, len(prompts), total, tuple(differences), tuple(control), speculation)


def replaying(
    pipeline: Pipeline, prompt: Sequence[int], text: Sequence[int], size: int
) -> Pipeline:
    """Plain decoding that scores `size` tokens a forward: drafts are its own earlier text."""
    whole = (*prompt, *text)

    def propose(prefix: Prefix, sampling: Sampling) -> Proposal:
        rest = whole[len(prefix) : len(prefix) + size - 1]
        return LookupPaths((rest,) if rest else (), sampling, pipeline.target.vocab_size)

    return Pipeline(
        pipeline.target,
        OracleDrafter(propose),
        Chain(ChainOptions()),
        Fixed(FixedOptions(nodes=size)),
        Match(),
        generation=pipeline.generation,
    )


def _first(
    pipeline: Pipeline,
    number: int,
    prompt: Sequence[int],
    found: Generation,
    wanted: Generation,
    dtype: str,
) -> list[Difference]:
    pairs = enumerate(zip(found.tokens, wanted.tokens, strict=False))
    at = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
    if at is None:
        return []
    processors = pipeline.request(prompt, temperature=0.0, seed=0).processors
    text = wanted.tokens[: at + 1]
    row = scores_along(pipeline.target, prompt, text, processors)[-1]
    best = row.topk(2).values
    ours, theirs = found.tokens[at], wanted.tokens[at]
    # The pair that changed places may be further apart than the two best.
    margin = max(float(best[0] - best[1]), float(best[0] - row[ours]), float(best[0] - row[theirs]))
    largest = float(row[row > -float("inf")].abs().max())
    return [Difference(number, at, margin, BOUNDS[dtype] * largest, (ours, theirs))]
