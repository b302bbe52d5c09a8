"""Text of a pipeline beside plain decoding's, with the target's margin where they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from draftwood.core.generation import Generation, Pipeline
from draftwood.core.options import Sampling
from draftwood.core.proposals import LookupPaths, Proposal
from draftwood.core.randomness import Seeded
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import ChainOptions
from draftwood.plugins.verifiers.match import Match
from draftwood.testing.lossless.distribution import probs_with_edge
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
class TextDifference:
    """The first place where two texts differ.

    Attributes:
        prompt: Number of the prompt.
        position: Of the new token, from 0.
        margin: Between the target's two best logits there; for seeded text, between the logarithms
            of the race that draws a token.
        bound: Margins up to this one may be decided by rounding.
        tokens: The pipeline's token and plain decoding's.
        code: Python that shows both texts again, with `pipeline` loaded.
    """

    prompt: int
    position: int
    margin: float
    bound: float
    tokens: tuple[int, int]
    code: str = ""

    @property
    def within(self) -> bool:
        return self.margin <= self.bound

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        pipeline, plain = values.pop("tokens")
        return {**values, "within": self.within, "pipeline": pipeline, "plain": plain}


@frozen
class ParityEvidence:
    """Text in one dtype, with the same seeds as plain decoding's.

    Attributes:
        dtype: Of the target.
        prompts: Number of prompts.
        tokens: New tokens of plain decoding.
        differences: Between the pipeline and plain decoding, at most one per prompt.
        control: Between plain decoding and itself in other chunk sizes: what the dtype alone does.
        speculation: Of the pipeline.
        temperature: 0 for greedy text.
    """

    dtype: str
    prompts: int
    tokens: int
    differences: tuple[TextDifference, ...]
    control: tuple[TextDifference, ...]
    speculation: Speculation = field(factory=Speculation)
    temperature: float = 0.0

    @property
    def biased(self) -> bool:
        return any(not difference.within for difference in self.differences)

    def as_dict(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "prompts": self.prompts,
            "tokens": self.tokens,
            "differences": [each.as_dict() for each in self.differences],
            "control": {
                "chunk_sizes": list(CHUNKS),
                "differences": [each.as_dict() for each in self.control],
            },
        }


def check_parity(
    pipeline: Pipeline,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    dtype: str,
    temperature: float = 0.0,
) -> ParityEvidence:
    """Decode each prompt with `pipeline`, plainly, and plainly in other chunk sizes.

    Args:
        pipeline: Its verifier declares seed_parity if the temperature is above 0.
        prompts: Token ids.
        tokens: New tokens of a text.
        dtype: Of the target.
        temperature: 0 for greedy text.
    """
    plain = Pipeline(pipeline.target, generation=pipeline.generation)
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": tokens, "seed": 0}
    differences, control, total, speculation = [], [], 0, Speculation()
    for number, prompt in enumerate(prompts):
        expected = plain.generate(prompt, **options)
        output = pipeline.generate(prompt, **options)
        speculation += Speculation.of(output)
        total += len(expected.tokens)
        differences += _difference(pipeline, number, prompt, output, expected, dtype, options)
        for size in CHUNKS:
            chunked = replaying(pipeline, prompt, expected.tokens, size).generate(prompt, **options)
            control += _difference(pipeline, number, prompt, chunked, expected, dtype, options)
    return ParityEvidence(
        dtype, len(prompts), total, tuple(differences), tuple(control), speculation, temperature
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
    options: Mapping[str, Any],
) -> list[TextDifference]:
    """The first difference of two texts, if there is one."""
    pairs = enumerate(zip(output.tokens, expected.tokens, strict=False))
    at = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
    if at is None:
        return []
    request = pipeline.request(prompt, **options)
    text = expected.tokens[: at + 1]
    row = scores_along(pipeline.target, prompt, text, request.processors)[-1]
    pair = output.tokens[at], expected.tokens[at]
    bound = ROUNDING_BOUNDS[dtype] * float(row[row > -float("inf")].abs().max())
    if not request.options.sampling.greedy:
        sampling = request.options.sampling
        probs = probs_with_edge(row.repeat(2, 1), pair, sampling).amax(0)
        row = Seeded(options["seed"]).stream("verify").race(probs, len(prompt) + at).log()
        bound /= sampling.temperature
    best = row.topk(2).values
    # The two tokens that changed places may be further apart than the two best.
    margin = float(best[0] - min(best[1], *(row[token] for token in pair)))
    code = (
        f"options = { ({**options, 'max_new_tokens': at + 1}) }\n"
        f"prompt = {list(prompt)}\n"
        "print(pipeline.generate(prompt, **options).tokens)\n"
        "plain = draftwood.Pipeline(pipeline.target, generation=pipeline.generation)\n"
        "print(plain.generate(prompt, **options).tokens)"
    )
    return [TextDifference(number, at, margin, bound, pair, code)]
