"""Whole rounds of random models of real sizes by stage, and the costs of their forward passes.

Weights are random and nothing is downloaded: times do not depend on what weights say. The drafter
is a DFlash network of the published shape (5 layers, blocks of 16) whose distributions are pushed
towards a text that plain decoding said before, so that trees are partly accepted and commits have
rows to move."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen
from clocks import Clock, Timed, place
from transformers import AutoModelForCausalLM, Qwen3Config

from draftwood.core.build import build_component
from draftwood.core.generation import Pipeline
from draftwood.core.hf import HFTarget
from draftwood.core.hf.costs import chain_tree
from draftwood.core.interfaces import Verifier
from draftwood.core.kernels.triton.kernels import TritonKernels
from draftwood.core.proposals import FactorizedProposal
from draftwood.core.registry.plugin import Kind
from draftwood.core.values import RoundStats
from draftwood.plugins.controllers.roofline.fitting import fit_roof
from draftwood.plugins.controllers.roofline.measuring import Probe, monotone
from draftwood.plugins.controllers.roofline.probing import MIN_FITTED_SIZES
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.drafter import DFlash, DFlashSession
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.options import DFlashOptions
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.options import TritonOptions
from draftwood.plugins.verifiers.triton.verifier import Triton

STAGES = ("draft", "grow", "verify", "judge", "commit", "other")
TORCH, EAGER, GRAPHS = "torch: sdpa, match", "triton, eager", "triton, graphs"


@frozen
class Model:
    """A Qwen3 of these sizes. drafter_layers, block: of its drafter."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    tied: bool = True
    kv_heads: int = 8
    dim: int = 128
    vocab: int = 151_936
    drafter_layers: int = 5
    block: int = 16

    def config(self, positions: int) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.dim,
            tie_word_embeddings=self.tied,
            max_position_embeddings=positions,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )

    def drafter_config(self, positions: int) -> DFlashConfig:
        taps = sorted({1 + (self.layers - 2) * at // 5 for at in range(1, 6)})
        return DFlashConfig(
            hidden_size=self.hidden,
            num_layers=self.drafter_layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.dim,
            intermediate_size=self.inner,
            vocab_size=self.vocab,
            draft_vocab_size=self.vocab,
            block_size=self.block,
            mask_token_id=self.vocab - 1,
            target_layer_ids=tuple(taps),
            target_hidden_size=self.hidden,
            causal=(False,) * self.drafter_layers,
            windows=(None,) * self.drafter_layers,
            max_position_embeddings=positions,
        )


@frozen
class Work:
    """Which models, how long a context, how many draft nodes, tokens a request and requests; and
    at which sizes and contexts forwards are timed."""

    models: tuple[Model, ...]
    context: int
    nodes: int
    new: int
    requests: int
    sizes: tuple[int, ...]
    contexts: tuple[int, ...]


REAL = Work(
    models=(
        Model("Qwen3-8B", 4096, 12288, 36, 32, tied=False),
        Model("Qwen3-0.6B", 1024, 3072, 28, 16),
        Model("Qwen3-4B", 2560, 9728, 36, 32),
    ),
    context=8192,
    nodes=64,
    new=40,
    requests=3,
    sizes=(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256),
    contexts=(512, 8192),
)
TINY = Model("tiny", 32, 48, 2, 4, False, 2, 16, vocab=64, drafter_layers=1, block=4)
DRY = Work((TINY,), context=20, nodes=3, new=3, requests=1, sizes=(1, 3), contexts=(20,))


def measure(add: Callable[[dict[str, Any]], None], end: float, dry: bool) -> None:
    """Per model a row for each way to run a round, and one for its T_v(N).

    Raises RuntimeError if one of them failed, when all others are done.
    """
    work, failures = DRY if dry else REAL, []
    for number, model in enumerate(work.models):
        share = (end - time.monotonic()) / (len(work.models) - number)
        if share < 0:
            break
        clock = Clock(place(dry), time.monotonic() + share)
        for row in _rows(model, work, clock, torch.float32 if dry else torch.bfloat16):
            add(row)
            if row.get("error"):
                failures.append(f"{row['case']}, {row['mode']}: {row['error']}")
        gc.collect()
        if clock.on_gpu:
            torch.cuda.empty_cache()
    if failures:
        raise RuntimeError("; ".join(failures))


def _rows(model: Model, work: Work, clock: Clock, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """The rows of one model; a model that does not fit gives a row with the error."""
    try:
        with torch.inference_mode():
            bench = Bench(model, work, clock, dtype)
            yield from bench.rounds()
            yield from bench.forwards()
    except Exception as error:  # noqa: BLE001 - the other models go on
        row = {"case": model.name, "kind": "model", "mode": ""}
        yield {**row, "error": f"{type(error).__name__}: {error}"[:300]}


@frozen(eq=False)
class Mode:
    """One way to run a model's rounds."""

    target: HFTarget
    verifier: Verifier
    kernels: TritonKernels | None = None


class Bench:
    """One model and its modes."""

    def __init__(self, model: Model, work: Work, clock: Clock, dtype: torch.dtype) -> None:
        self.model, self.work, self.clock, self.dtype = model, work, clock, dtype
        torch.manual_seed(0)
        positions = max(work.context, *work.contexts) + 1024
        with torch.device(clock.device):
            network = AutoModelForCausalLM.from_config(
                model.config(positions), dtype=dtype, attn_implementation="sdpa"
            )
            self.drafter = DFlashModel(model.drafter_config(positions)).to(dtype).eval()
        self.network = network.eval()
        rng = random.Random(0)
        self.prompt = tuple(rng.randrange(model.vocab - 1) for _ in range(work.context))
        self.target = self._target()
        self.modes: dict[str, Mode] = {
            TORCH: Mode(self.target, Match()),
            EAGER: Mode(self.target, Triton(TritonOptions()), TritonKernels()),
        }
        self.absent: dict[str, str] = {}
        self._add_graphs()

    def _target(self, **options: Any) -> HFTarget:
        return HFTarget(self.network, name=self.model.name, **options)

    def _add_graphs(self) -> None:
        if self.clock.on_gpu:
            self.modes[GRAPHS] = Mode(
                self._target(graphs="on"), Triton(TritonOptions()), TritonKernels()
            )
        else:
            self.absent[GRAPHS] = "graphs need a GPU"

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Medians over rounds of requests; the modes alternate."""
        text = self._text()
        pipelines: dict[str, Pipeline] = {}
        found: dict[str, list[RoundStats]] = {}
        errors: dict[str, str] = {**self.absent}
        for mode, way in self.modes.items():
            try:
                pipelines[mode] = self._pipeline(way, text)
                self._request(pipelines[mode], 4)  # compiles, captures, and chooses kernels
                found[mode] = []
            except Exception as error:  # noqa: BLE001 - one way's failure is a result
                errors[mode] = f"{type(error).__name__}: {error}"[:300]
        for request in range(self.work.requests):
            if request and self.clock.left < 0.5 * self.work.requests:
                break
            for mode, rounds in found.items():
                rounds += self._request(pipelines[mode], self.work.new)
        for mode in (*self.modes, *self.absent):
            row = {"case": self.model.name, "kind": "round", "mode": mode}
            if mode in errors:
                failed = mode not in self.absent
                yield {**row, "error" if failed else "absent": errors[mode]}
            else:
                yield {**row, **self._split(found[mode])}

    def _text(self) -> list[int]:
        """The prompt and the text of plain decoding."""
        wanted = self.work.new + self.model.block
        options = {"temperature": 0.0, "eos_token_id": ()}
        result = Pipeline(self.target).generate(self.prompt, max_new_tokens=wanted, **options)
        return [*self.prompt, *result.tokens]

    def _pipeline(self, way: Mode, text: list[int]) -> Pipeline:
        return Pipeline(
            way.target,
            Told(self.drafter, text),
            build_component(Kind.TREE, "best_first", max_nodes=self.work.nodes),
            build_component(Kind.CONTROLLER, "fixed", nodes=self.work.nodes),
            way.verifier,
            kernels=way.kernels,
        )

    def _request(self, pipeline: Pipeline, new: int) -> list[RoundStats]:
        """The rounds of one request without the first, which reads the prompt's features."""
        rounds: list[RoundStats] = []
        pipeline.observers.append(rounds.append)
        try:
            pipeline.generate(self.prompt, max_new_tokens=new, temperature=0.0, eos_token_id=())
        finally:
            pipeline.observers.remove(rounds.append)
        return rounds[1:] or rounds

    def _split(self, rounds: list[RoundStats]) -> dict[str, Any]:
        """Median seconds by stage, of rounds that verified a whole tree."""
        whole = [stats for stats in rounds if stats.budget == self.work.nodes] or rounds
        stages = {
            stage: statistics.median(getattr(stats.timings, stage) for stats in whole)
            for stage in STAGES
        }
        total = statistics.median(stats.timings.total for stats in whole)
        return {
            "context": self.work.context,
            "nodes": self.work.nodes,
            "rounds": len(whole),
            "tokens_per_round": statistics.mean(stats.committed for stats in whole),
            "seconds": total,
            "stages": stages,
            "judge_and_commit": (stages["judge"] + stages["commit"]) / total,
        }

    def forwards(self) -> Iterator[dict[str, Any]]:
        """T_v(N) of each mode, and its fitted roofs."""
        for mode, way in self.modes.items():
            row = {"case": self.model.name, "kind": "forwards", "mode": mode}
            try:
                yield {**row, **self._curve(way)}
            except Exception as error:  # noqa: BLE001 - one way's failure is a result
                yield {**row, "error": f"{type(error).__name__}: {error}"[:300]}

    def _curve(self, way: Mode) -> dict[str, Any]:
        target = way.target
        session = target.open(kernels=way.kernels)
        points: list[dict[str, Any]] = []
        for context in self.work.contexts:
            session.drop()
            session.cache.pretend(context)
            for tokens in self.work.sizes:
                timed = self._timed(target, session, tokens)
                points.append({"tokens": tokens, "context": context, **timed.as_dict()})
                if self.clock.left < 0 and len(points) >= MIN_FITTED_SIZES:
                    break
        return {"points": points, **self._fitted(target, points)}

    def _timed(self, target: HFTarget, session: Any, tokens: int) -> Timed:
        tree = chain_tree(tokens)
        call = {"forward": lambda: target.forward([(session, tree)])}
        return self.clock.host_times(call, 9 if self.clock.on_gpu else 1)["forward"]

    def _fitted(self, target: HFTarget, points: list[dict[str, Any]]) -> dict[str, Any]:
        """The roofline fitted to the points, and its errors."""
        timed = [point for point in points if point["seconds"]]
        if len({point["tokens"] for point in timed}) < MIN_FITTED_SIZES:
            return {}
        probes = [Probe(point["tokens"], point["context"], point["seconds"]) for point in timed]
        costs = target.costs(time.perf_counter)
        peaks = costs.peaks()
        roof = fit_roof(costs, peaks, monotone(probes))
        misses = [
            abs(float(roof.seconds(probe.tokens, probe.context)) / probe.seconds - 1)
            for probe in probes
        ]
        return {
            "peaks": {"flops": peaks[0], "bytes": peaks[1]},
            "roof": {"compute": roof.compute, "memory": roof.memory},
            "median_error": statistics.median(misses),
            "largest_error": max(misses),
        }


class Told(DFlash):
    """A DFlash drafter with random weights that proposes two thirds of a text's tokens."""

    def __init__(self, model: DFlashModel, text: list[int]) -> None:
        self.options = DFlashOptions("random")
        self.model, self.config, self._shared, self._captured = model, model.config, None, None
        rng = random.Random(0)
        wrong = model.config.vocab_size - 1
        told = [token if rng.random() < 2 / 3 else rng.randrange(wrong) for token in text]
        self.text = torch.tensor(told, device=model.device)

    def proposal(
        self, slots: torch.Tensor, anchor: int, session: DFlashSession
    ) -> FactorizedProposal:
        shared = session.shared
        logits = self.model.logits(slots[1:], shared.head)
        after = session.cache.length + 1
        known = self.text[after : after + len(logits), None]
        best = logits.amax(-1, keepdim=True)[: len(known)]
        logits[: len(known)].scatter_(1, known, best + 3.0)
        return FactorizedProposal(logits, session.sampling, shared.vocabulary)
