"""The pipeline a user holds: prompts in; text, tokens and statistics out."""

import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from attrs import frozen

from draftwood.core.engine import Engine, Request, Run, Step
from draftwood.core.errors import RequestError
from draftwood.core.interfaces import (
    BudgetController,
    ControllerState,
    Drafter,
    Kernels,
    Target,
    TreePolicy,
    Verifier,
)
from draftwood.core.kernels.available import KernelsName
from draftwood.core.kernels.resolve import resolve_kernels
from draftwood.core.node_distributions import Processor, TopLogprobs
from draftwood.core.options import GenerationOptions
from draftwood.core.processes import broadcast_from_rank0
from draftwood.core.randomness import Seeded
from draftwood.core.registry.loader import load_plugins
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import Registered
from draftwood.core.stats import RequestStats
from draftwood.core.stopping import EndOfText, StopRule, StopStrings
from draftwood.core.text import Prompt, TextStream, encode
from draftwood.core.values import RoundStats

log = logging.getLogger("draftwood")

Observer = Callable[[RoundStats], object]
"""Called with the stats of each round."""


@frozen(eq=False)
class Chunk(Step):
    """The output of one step of a stream.

    Attributes:
        text: Whole characters only; None without a tokenizer.
    """

    text: str | None = None


@frozen(eq=False)
class Generation:
    """A finished request.

    Attributes:
        text: The new text; None without a tokenizer.
        tokens: The new tokens.
        logprobs: Their log-probabilities if the request wants them, else None.
        finish_reason: eos, stop_string, length, context, or the name of a custom rule.
        seed: The seed that reproduces it.
        stats: Totals of its rounds, launches of kernels included.
        speculation: {ran, reason}: whether drafts were made, and why not.
        verifier: Name of the verifier.
        top_logprobs: (token, log-probability) of the most likely tokens at each place if the
            request wants them, else None.
    """

    text: str | None
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str
    seed: int
    stats: RequestStats
    speculation: Mapping[str, Any]
    verifier: str
    top_logprobs: tuple[TopLogprobs, ...] | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(self.stats.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `draftwood run --json`."""
        seconds = self.seconds
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "logprobs": None if self.logprobs is None else list(self.logprobs),
            "top_logprobs": None if self.top_logprobs is None else list(self.top_logprobs),
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            **self.stats.as_dict(),
            "tokens_per_second": len(self.tokens) / seconds if seconds > 0 else None,
            "speculation": dict(self.speculation),
            "verifier": self.verifier,
        }


class Pipeline:
    """A target and a verifier; and, to speculate, a drafter, a tree policy and a controller.

        pipeline = draftwood.load_pipeline("bastion")
        print(pipeline.generate("def main(", max_new_tokens=64).text)

    Args:
        target: A `Target`, or a Hugging Face model to wrap as one.
        drafter: Given together with `tree` and `controller`, or not at all.
        tree: The tree policy.
        controller: The budget controller.
        verifier: The bundled `match` if None.
        tokenizer: For text prompts, stop strings and text output.
        generation: Defaults of requests.
        observers: Called with RoundStats after each round's tokens have been returned.
        clock: Seconds; the only source of time.
        kernels: Attention and compaction kernels for the target: an object, a name that
            `runtime.kernels` takes, or None for the model's own attention.

    Raises:
        RequestError: Some of drafter, tree and controller are missing.
        PairingError: The drafter does not fit the target.
        UnsupportedTarget: The model's state cannot be rolled back, or the kernels or the verifier
            do not run on its device.
    """

    def __init__(
        self,
        target: Any,
        drafter: Drafter | None = None,
        tree: TreePolicy | None = None,
        controller: BudgetController[Any, Any] | None = None,
        verifier: Verifier | None = None,
        *,
        tokenizer: Any | None = None,
        generation: GenerationOptions | None = None,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.perf_counter,
        kernels: Kernels | KernelsName | None = None,
    ) -> None:
        if not isinstance(target, Target):
            from draftwood.core.hf import wrap_model

            target = wrap_model(target, tokenizer)
        if verifier is None:
            match = _default_verifier()
            verifier = match.build(match.plugin.options())
        self.target: Target = target
        self.tokenizer = tokenizer
        options = generation or GenerationOptions()
        self.generation = options.completed_by(self.target.generation_defaults)
        self.observers = list(observers)
        kernels = resolve_kernels(
            kernels, target.device, check=lambda found: self.target.open(kernels=found)
        )
        self.engine = Engine(target, verifier, drafter, tree, controller, clock, kernels)

    def generate(
        self,
        prompt: Prompt,
        *,
        logits_processor: Sequence[Processor] = (),
        stops: Sequence[StopRule] = (),
        model_inputs: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Generation:
        """Decode one prompt to its end.

        Args:
            prompt: Text, token ids or chat messages.
            logits_processor: More processors, applied at every node with the node's own path.
            stops: More stop rules.
            model_inputs: More inputs of the target's prefill, by its own names: images.
            changes: Generation options by name; they override the pipeline's defaults.

        Raises:
            RequestError: The prompt or an option is wrong; the pipeline stays usable.
        """
        request = self.request(
            prompt,
            logits_processor=logits_processor,
            stops=stops,
            model_inputs=model_inputs,
            **changes,
        )
        run, seed = self._start(request)
        return self._finished(run, seed, list(self._decode(run)))

    def stream(
        self,
        prompt: Prompt,
        *,
        logits_processor: Sequence[Processor] = (),
        stops: Sequence[StopRule] = (),
        model_inputs: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Generator[Chunk, None, Generation]:
        """Decode one prompt, a chunk per step; arguments and errors are those of `generate`.

        Closing the iterator ends the request. `yield from` returns the Generation.
        """
        request = self.request(
            prompt,
            logits_processor=logits_processor,
            stops=stops,
            model_inputs=model_inputs,
            **changes,
        )
        run, seed = self._start(request)
        return self._stream(run, seed)

    def request(
        self,
        prompt: Prompt,
        *,
        logits_processor: Sequence[Processor] = (),
        stops: Sequence[StopRule] = (),
        model_inputs: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Request:
        """A request for `engine.open`, for callers that step runs themselves."""
        defaults = self.target.generation_defaults
        options = self.generation.override(changes).constrained_by(defaults)
        ids = encode(prompt, self.tokenizer)
        seed = options.seed
        if seed is None:
            (seed,) = broadcast_from_rank0([secrets.randbits(63)])
        eos = options.eos_token_id
        ends = self.target.eos_token_ids if eos is None else frozenset(eos)
        return Request(
            prompt=ids,
            options=options,
            randomness=Seeded(seed),
            processors=self._processors(options, len(ids), ends, logits_processor),
            stops=(*self._stops(options, ends), *stops),
            inputs=model_inputs or {},
        )

    def custom_generate(
        self, streamer: Any | None = None, seed: int | None = None
    ) -> Callable[..., Any]:
        """A callable for `model.generate(..., custom_generate=pipeline.custom_generate())`.

        Stop strings are those of this pipeline's generation options. See
        `draftwood.core.hf.custom_generate` for the settings that are honoured.

        Args:
            streamer: Pass it here: `generate` does not pass its own streamer on, so that one given
                there gets the prompt alone.
            seed: Of sampling; None takes one from torch's global generator.
        """
        from draftwood.core.hf.custom_generate import custom_generate

        model = getattr(self.target, "model", None)
        return custom_generate(model, self.stream, streamer=streamer, seed=seed)

    def speculation(self, run: Run) -> dict[str, Any]:
        """{ran, reason} of a run: whether drafts were made, and why not, or why not always."""
        controller = self.engine.controller
        ran = any(run.stats.budgets)  # a drafter may run and propose nothing
        if controller is None:
            return {"ran": False, "reason": "this pipeline has no drafter: plain decoding"}
        reason = controller.explain(ControllerState(self.engine.machine, run.controller_state))
        if reason is None and not ran:
            reason = (
                "the drafter never had a token to propose"
                if run.stats.drafted
                else "no round had room for a draft token beside its bonus token"
            )
        return {"ran": ran, "reason": reason}

    def _start(self, request: Request) -> tuple[Run, int]:
        assert isinstance(request.randomness, Seeded)
        return self.engine.open(request), request.randomness.seed

    def _processors(
        self,
        options: GenerationOptions,
        prompt_length: int,
        eos: frozenset[int],
        extra: Sequence[Processor],
    ) -> tuple[Processor, ...]:
        if not (extra or options.path_dependent):
            return ()
        from draftwood.core.hf import build_processors

        processors = build_processors(
            options,
            prompt_length,
            eos,
            extra,
            device=self.target.device,
            vocab_size=self.target.vocab_size,
        )
        return tuple(processors)

    def _stops(self, options: GenerationOptions, eos: frozenset[int]) -> tuple[StopRule, ...]:
        rules: list[StopRule] = []
        if eos:
            rules.append(EndOfText(eos))
        if options.stop_strings:
            if self.tokenizer is None:
                raise RequestError("stop_strings need a tokenizer; pass tokenizer= or use eos ids")
            rules.append(StopStrings(options.stop_strings, self.tokenizer))
        return tuple(rules)

    def _decode(self, run: Run) -> Iterator[Chunk]:
        text = TextStream(self.tokenizer) if self.tokenizer is not None else None
        while run.finish_reason is None:
            (step,) = self.engine.step([run])
            yield self._chunk(step, text)
            if step.stats is not None:
                self._notify(step.stats)

    def _chunk(self, step: Step, text: TextStream | None) -> Chunk:
        piece = None
        if text is not None:
            piece = text.push(step.tokens)
            if step.finish_reason is not None:
                piece += text.finish()
        return Chunk(
            step.tokens,
            step.logprobs,
            step.finish_reason,
            step.stats,
            step.top_logprobs,
            text=piece,
        )

    def _stream(self, run: Run, seed: int) -> Generator[Chunk, None, Generation]:
        chunks = []
        for chunk in self._decode(run):
            chunks.append(chunk)
            yield chunk
        return self._finished(run, seed, chunks)

    def _finished(self, run: Run, seed: int, chunks: Sequence[Chunk]) -> Generation:
        assert run.finish_reason is not None
        options, logprobs, top = run.request.options, None, None
        if options.logprobs or options.top_logprobs:
            logprobs = tuple(value for chunk in chunks for value in chunk.logprobs or ())
        if options.top_logprobs:
            top = tuple(value for chunk in chunks for value in chunk.top_logprobs or ())
        return Generation(
            text=None if self.tokenizer is None else "".join(c.text or "" for c in chunks),
            tokens=tuple(run.new_ids),
            logprobs=logprobs,
            finish_reason=run.finish_reason,
            seed=seed,
            stats=run.stats,
            speculation=self.speculation(run),
            verifier=self.engine.verifier.name,
            top_logprobs=top,
        )

    def __repr__(self) -> str:
        parts = (self.engine.drafter, self.engine.tree, self.engine.controller)
        names = [type(part).__name__ for part in parts if part is not None]
        target = getattr(self.target, "name", type(self.target).__name__)
        return f"Pipeline({', '.join([repr(target), *names, repr(self.engine.verifier.name)])})"

    def _notify(self, stats: RoundStats) -> None:
        for observer in list(self.observers):
            try:
                observer(stats)
            except Exception as error:  # noqa: BLE001 - an observer must never stop a decode
                self.observers.remove(observer)
                log.warning("observer %r raised %r and is disabled", observer, error)


@cache
def _default_verifier() -> Registered:
    """The bundled `match`. No third party's plugin is loaded to find it."""
    bundled = load_plugins(third_parties=False, environ={}, found=())
    return bundled.get(Kind.VERIFIER, "match")
