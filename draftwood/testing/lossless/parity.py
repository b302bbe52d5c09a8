"""Greedy text of a pipeline beside plain decoding's, with the target's margin where they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from draftwood.core.generation import Generation, Pipeline
from draftwood.core.options import Sampling
from draftwood.core.proposals import LookupPaths, Proposal
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import ChainOptions
from draftwood.plugins.verifiers.match import Match
from draftwood.testing.lossless.scoring import scores_along
from draftwood.testing.lossless.speculation import Speculation
from draftwood.testing.oracle import OracleDrafter, Prefix

ROUNDING_BOUNDS: Mapping[str, float] = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 5e-3,
    "bfloat16": 4e-2,
}
"""By dtype: two logits closer than this, relative to the largest, may change places between
forwards of different shapes."""

CHUNKS = (4, 16)
"""Tokens of a forward in the control."""


@frozen
class GreedyDifference:
    """The first place where two greedy texts differ.

    Attributes:
        prompt: Number of the prompt.
        position: Of the new token, from 0.
        margin: Between the target's two best logits there.
        bound: Margins up to this one may be decided by rounding.
        tokens: The pipeline's token and plain decoding's.
    """

    prompt: int
    position: int
    margin: float
    bound: float
    tokens: tuple[int, int]

    @property
    def within(self) -> bool:
        return self.margin <= self.bound

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        pipeline, plain = values.pop("tokens")
        return {**values, "within": self.within, "pipeline": pipeline, "plain": plain}


@frozen
class ParityEvidence:
    """Greedy text in one dtype.

    Attributes:
        dtype: Of the target.
        prompts: Number of prompts.
        tokens: New tokens of plain decoding.
        differences: Between the pipeline and plain decoding, at most one per prompt.
        control: Between plain decoding and itself in other chunk sizes: what the dtype alone does.
        speculation: Of the pipeline.
    """

    dtype: str
    prompts: int
    tokens: int
    differences: tuple[GreedyDifference, ...]
    control: tuple[GreedyDifference, ...]
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
) -> ParityEvidence:
    """Decode each prompt greedily with `pipeline`, plainly, and plainly in other chunk sizes."""
    plain = Pipeline(pipeline.target, generation=pipeline.generation)
    greedy: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": tokens, "seed": 0}
    differences, control, total, speculation = [], [], 0, Speculation()
    for number, prompt in enumerate(prompts):
        expected = plain.generate(prompt, **greedy)
        output = pipeline.generate(prompt, **greedy)
        speculation += Speculation.of(output)
        total += len(expected.tokens)
        differences += _difference(pipeline, number, prompt, output, expected, dtype)
        for size in CHUNKS:
            chunked = replaying(pipeline, prompt, expected.tokens, size).generate(prompt, **greedy)
            control += _difference(pipeline, number, prompt, chunked, expected, dtype)
    return ParityEvidence(
        dtype, len(prompts), total, tuple(differences), tuple(control), speculation
    )


def replaying(
    pipeline: Pipeline, prompt: Sequence[int], text: Sequence[int], size: int
) -> Pipeline:
    """Plain decoding that scores `size` tokens a forward: its drafts are the given text."""
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


def _difference(
    pipeline: Pipeline,
    number: int,
    prompt: Sequence[int],
    output: Generation,
    expected: Generation,
    dtype: str,
) -> list[GreedyDifference]:
    """The first difference of two texts, if there is one."""
    pairs = enumerate(zip(output.tokens, expected.tokens, strict=False))
    at = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
    if at is None:
        return []
    processors = pipeline.request(prompt, temperature=0.0, seed=0).processors
    text = expected.tokens[: at + 1]
    row = scores_along(pipeline.target, prompt, text, processors)[-1]
    best = row.topk(2).values
    ours, theirs = output.tokens[at], expected.tokens[at]
    # The two tokens that changed places may be further apart than the two best.
    margin = max(float(best[0] - best[1]), float(best[0] - row[ours]), float(best[0] - row[theirs]))
    largest = float(row[row > -float("inf")].abs().max())
    return [GreedyDifference(number, at, margin, ROUNDING_BOUNDS[dtype] * largest, (ours, theirs))]
