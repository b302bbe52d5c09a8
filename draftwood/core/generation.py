"""The pipeline a user holds: prompts in, text, tokens and statistics out."""

import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from draftwood.core.engine import Engine, Request, Run, Step
from draftwood.core.interfaces import (
    BudgetController,
    ControllerState,
    Drafter,
    Target,
    TreePolicy,
    Verifier,
)
from draftwood.core.node_distributions import Processor
from draftwood.core.options import GenerationOptions
from draftwood.core.processes import broadcast_from_rank0
from draftwood.core.randomness import Seeded
from draftwood.core.stats import RequestStats
from draftwood.core.stopping import EndOfText, StopRule, StopStrings
from draftwood.core.text import Prompt, TextStream, encode
from draftwood.core.values import RoundStats

log = logging.getLogger("draftwood")

Observer = Callable[[RoundStats], object]


@frozen(eq=False)
class Chunk:
    """What one step of a stream gave. text: whole characters only, None without a tokenizer.
    finish_reason: None until the last chunk. stats: of the round, None for the prefill."""

    text: str | None
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str | None
    stats: RoundStats | None


@frozen(eq=False)
class Generation:
    """A finished request. tokens are the new ones; text is None without a tokenizer.

    finish_reason: eos, stop_string, length, context, or the name of a custom rule. seed: what
    reproduces it. speculation: whether drafts were made, and if not, why not. verifier: what
    judged; `stats` says how often each of its kernels was launched.
    """

    text: str | None
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str
    seed: int
    stats: RequestStats
    speculation: Mapping[str, Any]
    verifier: str

    @property
    def seconds(self) -> float:
        return sum(self.stats.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `draftwood run --json`."""
        seconds = self.seconds
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "logprobs": None if self.logprobs is None else list(self.logprobs),
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            **self.stats.as_dict(),
            "tokens_per_second": len(self.tokens) / seconds if seconds > 0 else None,
            "speculation": dict(self.speculation),
            "verifier": self.verifier,
        }


class Pipeline:
    """A target and, unless it decodes plainly, a drafter, a tree policy, a controller; and a
    verifier.

        pipeline = draftwood.load_pipeline("bastion")
        print(pipeline.generate("def main(", max_new_tokens=64).text)

    target: a `Target`, or a Hugging Face model to wrap as one. verifier: `match` if None.
    tokenizer: for text prompts, stop strings and text output. generation: defaults of requests.
    observers: called with RoundStats after each round's tokens have been given out.
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
    ) -> None:
        if not isinstance(target, Target):
            from draftwood.core.hf import wrap_model

            target = wrap_model(target, tokenizer)
        self.target: Target = target
        self.tokenizer = tokenizer
        self.generation = generation or GenerationOptions()
        self.observers = list(observers)
        self.engine = Engine(
            target, verifier or _default_verifier(), drafter, tree, controller, clock
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        logits_processor: Sequence[Processor] = (),
        stops: Sequence[StopRule] = (),
        **changes: Any,
    ) -> Generation:
        """Decode one prompt to its end. `changes` override generation options by name.

        Raises RequestError if the prompt or an option is wrong; the pipeline stays usable.
        """
        run, seed = self._start(prompt, logits_processor, stops, changes)
        return self._finished(run, seed, list(self._decode(run)))

    def stream(
        self,
        prompt: Prompt,
        *,
        logits_processor: Sequence[Processor] = (),
        stops: Sequence[StopRule] = (),
        **changes: Any,
    ) -> Generator[Chunk, None, Generation]:
        """Decode one prompt, a chunk per step. Closing the iterator ends the request; its return
        value, as `yield from` gives it, is the Generation."""
        run, seed = self._start(prompt, logits_processor, stops, changes)
        return self._stream(run, seed)

    def request(
        self,
        prompt: Prompt,
        *,
        logits_processor: Sequence[Processor] = (),
        stops: Sequence[StopRule] = (),
        **changes: Any,
    ) -> Request:
        """A request for `engine.open`, for callers that step runs themselves."""
        options = self.generation.override(changes)
        ids = encode(prompt, self.tokenizer)
        seed = (
            broadcast_from_rank0([secrets.randbits(63)])[0]
            if options.seed is None
            else options.seed
        )
        eos = self._eos(options)
        return Request(
            prompt=ids,
            options=options,
            randomness=Seeded(seed),
            processors=self._processors(options, len(ids), eos, logits_processor),
            stops=(*self._stops(options, eos), *stops),
        )

    def custom_generate(
        self, streamer: Any | None = None, seed: int | None = None
    ) -> Callable[..., Any]:
        """A callable for `model.generate(..., custom_generate=pipeline.custom_generate())`.

        streamer: given here, because `generate` does not pass its own on: one that is given there
        sees the prompt and nothing more. The same holds for stop strings: they are options of this
        pipeline. See `draftwood.core.hf.custom_generate` for what it honours and refuses.
        """
        from draftwood.core.hf.custom_generate import custom_generate

        return custom_generate(self, streamer, seed)

    def speculation(self, run: Run) -> dict[str, Any]:
        """{ran, reason} of a run: whether drafts were made, and why not, or why not always."""
        controller = self.engine.controller
        ran = any(run.stats.budgets)  # asking a drafter that has nothing to say is not enough
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

    def _start(
        self,
        prompt: Prompt,
        logits_processor: Sequence[Processor],
        stops: Sequence[StopRule],
        changes: Mapping[str, Any],
    ) -> tuple[Run, int]:
        request = self.request(prompt, logits_processor=logits_processor, stops=stops, **changes)
        assert isinstance(request.randomness, Seeded)
        return self.engine.open(request), request.randomness.seed

    def _eos(self, options: GenerationOptions) -> frozenset[int]:
        given = options.eos_token_id
        return self.target.eos_token_ids if given is None else frozenset(given)

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
                from draftwood.core.errors import RequestError

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
        return Chunk(piece, step.tokens, step.logprobs, step.finish_reason, step.stats)

    def _stream(self, run: Run, seed: int) -> Generator[Chunk, None, Generation]:
        chunks = []
        for chunk in self._decode(run):
            chunks.append(chunk)
            yield chunk
        return self._finished(run, seed, chunks)

    def _finished(self, run: Run, seed: int, chunks: Sequence[Chunk]) -> Generation:
        assert run.finish_reason is not None
        logprobs = None
        if run.request.options.logprobs:
            logprobs = tuple(value for chunk in chunks for value in chunk.logprobs or ())
        return Generation(
            text=None if self.tokenizer is None else "".join(c.text or "" for c in chunks),
            tokens=tuple(run.new_ids),
            logprobs=logprobs,
            finish_reason=run.finish_reason,
            seed=seed,
            stats=run.stats,
            speculation=self.speculation(run),
            verifier=self.engine.verifier.name,
        )

    def _notify(self, stats: RoundStats) -> None:
        for observer in list(self.observers):
            try:
                observer(stats)
            except Exception as error:  # noqa: BLE001 - an observer must never stop a decode
                self.observers.remove(observer)
                log.warning("observer %r raised %r and is disabled", observer, error)


def _default_verifier() -> Verifier:
    from draftwood.core.build import build_component
    from draftwood.core.registry.plugin import Kind

    verifier: Verifier = build_component(Kind.VERIFIER, "match")
    return verifier
