"""What a user of a pipeline sees: text, tokens, log-probabilities, stops, seeds, observers."""

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwood.core.engine import Request
from draftwood.core.errors import NonFiniteLogits, RequestError
from draftwood.core.generation import Chunk, Generation, Pipeline
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.proposals import LookupPaths, Proposal
from draftwood.core.randomness import Seeded
from draftwood.core.values import RoundStats
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import ChainOptions
from draftwood.testing import OracleDrafter, OracleTarget, ScriptedClock

TEXT = "wörld → 漢字, naïve 😀 stop here."
BYTES = TEXT.encode()
PROMPT = "> "
START = len(PROMPT)
V = 256
BUDGETS = [0, 1, 4, 12]


class ByteTokenizer:
    """One token per byte, so that a character may take four tokens."""

    chat_template: str | None = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return bytes(ids).decode(errors="replace")


def recite(prefix: tuple[int, ...], peak: float = 1.0) -> list[float]:
    """Nearly certain of the next byte of TEXT, over and over."""
    probs = [2e-3] * V
    probs[BYTES[(len(prefix) - START) % len(BYTES)]] = peak
    return probs


def ramble(prefix: tuple[int, ...]) -> list[float]:
    return recite(prefix, peak=0.3)


def mostly_right_drafter(depth: int, wrong_every: int) -> OracleDrafter:
    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        places = range(len(prefix) - START, len(prefix) - START + depth)
        path = [BYTES[i % len(BYTES)] ^ (i % wrong_every == 0) for i in places]
        return LookupPaths((tuple(path),), sampling, V)

    return OracleDrafter(propose)


def pipeline(nodes: int, probs: Any = recite, wrong_every: int = 7, **target: Any) -> Pipeline:
    """A pipeline with a chain of `nodes` each round; 0 decodes plainly."""
    oracle = OracleTarget(V, probs, **target)
    if nodes == 0:
        return Pipeline(oracle, tokenizer=ByteTokenizer(), clock=ScriptedClock())
    return Pipeline(
        oracle,
        mostly_right_drafter(nodes, wrong_every),
        Chain(ChainOptions()),
        Fixed(FixedOptions(nodes=nodes)),
        tokenizer=ByteTokenizer(),
        clock=ScriptedClock(),
    )


def streamed(shared: Pipeline, **options: Any) -> tuple[list[Chunk], Generation]:
    stream, chunks = shared.stream(PROMPT, **options), []
    while True:
        try:
            chunks.append(next(stream))
        except StopIteration as end:
            return chunks, end.value


def checked_counts(result: Generation) -> Generation:
    """The result; checks that each committed token is counted once, and none past the end."""
    assert result.stats.committed + 1 == len(result.tokens)
    assert sum(result.stats.committed_per_round) == result.stats.committed
    assert result.logprobs is None or len(result.logprobs) == len(result.tokens)
    assert result.text == ByteTokenizer().decode(result.tokens)
    return result


# Stop strings ------------------------------------------------------------------------------------


@pytest.mark.covers("stop-string")
@pytest.mark.parametrize("nodes", BUDGETS)
@pytest.mark.parametrize("offset", range(len(TEXT) - 2))
def test_a_stop_string_ends_the_text_at_every_offset(nodes: int, offset: int) -> None:
    stop = TEXT[offset : offset + 3]
    result = checked_counts(
        pipeline(nodes).generate(PROMPT, stop_strings=(stop,), logprobs=True, max_new_tokens=90)
    )
    assert result.finish_reason == "stop_string"
    assert result.text == TEXT[: TEXT.index(stop) + 3]


@pytest.mark.covers("stop-string")
@pytest.mark.parametrize("nodes", BUDGETS)
@pytest.mark.parametrize("cap", range(1, len(BYTES)))
def test_the_earlier_of_a_stop_string_and_the_length_limit_ends_the_text(
    nodes: int, cap: int
) -> None:
    end = len(TEXT[: TEXT.index("naï") + 3].encode())
    result = checked_counts(
        pipeline(nodes).generate(PROMPT, stop_strings=("naï",), max_new_tokens=cap, logprobs=True)
    )
    assert result.tokens == tuple(BYTES[: min(cap, end)])
    assert result.finish_reason == ("stop_string" if end <= cap else "length")


@pytest.mark.covers("stop-string")
@pytest.mark.parametrize("nodes", BUDGETS)
def test_the_earliest_of_several_stop_strings_ends_the_text(nodes: int) -> None:
    result = pipeline(nodes).generate(
        PROMPT, stop_strings=("here", "字,", "stop"), max_new_tokens=90
    )
    assert result.text == TEXT[: TEXT.index("字,") + 2]


@pytest.mark.covers("stop-string")
def test_a_stop_string_inside_the_prompt_is_ignored() -> None:
    result = pipeline(4).generate(PROMPT, stop_strings=("> ", "> w"), max_new_tokens=20)
    assert result.finish_reason == "length"
    assert len(result.tokens) == 20


def test_stop_strings_without_a_tokenizer_raise() -> None:
    bare = Pipeline(OracleTarget(V, recite))
    with pytest.raises(RequestError, match="need a tokenizer"):
        bare.generate([1, 2], stop_strings=("x",))
    assert bare.generate([1, 2], max_new_tokens=3).text is None


# End of text ------------------------------------------------------------------------------------


@pytest.mark.covers("end-of-text-in-run")
@pytest.mark.parametrize("nodes", BUDGETS)
@pytest.mark.parametrize("offset", range(len(BYTES)))
def test_end_of_text_at_every_offset_is_found_at_its_first_occurrence(
    nodes: int, offset: int
) -> None:
    token = BYTES[offset]
    chunks, result = streamed(
        pipeline(nodes), eos_token_id=(token,), max_new_tokens=90, logprobs=True
    )
    checked_counts(result)
    assert result.tokens == tuple(BYTES[: BYTES.index(token) + 1])
    assert result.finish_reason == chunks[-1].finish_reason == "eos"
    assert tuple(itertools.chain(*(chunk.tokens for chunk in chunks))) == result.tokens


def test_a_requests_end_of_text_replaces_the_targets() -> None:
    shared = pipeline(4)
    shared.target.eos_token_ids = frozenset(b"r")
    assert shared.generate(PROMPT, max_new_tokens=30).text == "wör"
    assert shared.generate(PROMPT, max_new_tokens=30, eos_token_id=(ord("l"),)).text == "wörl"
    assert len(shared.generate(PROMPT, max_new_tokens=30, eos_token_id=()).tokens) == 30


@pytest.mark.covers("token-limit")
@pytest.mark.parametrize("nodes", BUDGETS)
@pytest.mark.parametrize("count", range(16))
def test_exactly_max_new_tokens_are_returned(nodes: int, count: int) -> None:
    chunks, result = streamed(pipeline(nodes, wrong_every=100), max_new_tokens=count, logprobs=True)
    assert result.tokens == tuple(BYTES[:count])
    assert result.finish_reason == "length"
    assert result.text == "".join(chunk.text or "" for chunk in chunks)
    assert len(result.logprobs or ()) == count


@pytest.mark.covers("prompt-length")
@pytest.mark.parametrize("nodes", BUDGETS)
def test_prompts_that_leave_no_room_raise_and_shorter_ones_decode(nodes: int) -> None:
    shared = pipeline(nodes, max_context=12)
    with pytest.raises(RequestError, match="empty"):
        shared.generate("")
    for length in (12, 13):
        with pytest.raises(RequestError, match="no room"):
            shared.generate([62] * length)
    for length in (1, 2, 11):
        result = shared.generate([62] * length)
        assert result.finish_reason == "context"
        assert len(result.tokens) == 12 - length


# Streaming --------------------------------------------------------------------------------------


@pytest.mark.covers("streaming")
@pytest.mark.parametrize("nodes", BUDGETS)
def test_streamed_pieces_hold_whole_characters_and_join_to_the_text(nodes: int) -> None:
    count = len(BYTES) + len("wörld → ".encode())
    chunks, result = streamed(pipeline(nodes), max_new_tokens=count)
    assert result.text == TEXT + "wörld → "
    assert "".join(chunk.text or "" for chunk in chunks) == result.text
    assert all("\ufffd" not in (chunk.text or "") for chunk in chunks)
    assert len(chunks) == result.stats.rounds + 1


@pytest.mark.parametrize("nodes", BUDGETS)
def test_a_length_limit_inside_a_character_still_streams_all_of_the_text(nodes: int) -> None:
    cut = len("wörld → 漢".encode()) - 1
    chunks, result = streamed(pipeline(nodes), max_new_tokens=cut)
    assert result.text == "wörld → \ufffd"
    assert "".join(chunk.text or "" for chunk in chunks) == result.text


@pytest.mark.covers("request-isolation")
def test_closing_a_stream_does_not_affect_the_next_request() -> None:
    shared = pipeline(4)
    stream = shared.stream(PROMPT, max_new_tokens=60)
    next(stream)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert (
        shared.generate(PROMPT, max_new_tokens=60).text
        == pipeline(0).generate(PROMPT, max_new_tokens=60).text
    )


@pytest.mark.covers("statistics-after-stop")
def test_chunks_carry_the_stats_of_their_round() -> None:
    chunks, result = streamed(pipeline(4), max_new_tokens=40)
    assert chunks[0].stats is None
    stats = [chunk.stats for chunk in chunks[1:]]
    assert [s.committed for s in stats if s] == [len(chunk.tokens) for chunk in chunks[1:]]
    assert [s.round for s in stats if s] == list(range(result.stats.rounds))
    assert result.stats.accepted > 0
    assert result.stats.rejected > 0


# Log-probabilities ------------------------------------------------------------------------------


@pytest.mark.covers("log-probabilities")
@pytest.mark.parametrize("nodes", BUDGETS[1:])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_log_probabilities_equal_those_of_plain_decoding(nodes: int, temperature: float) -> None:
    options = {"temperature": temperature, "seed": 3, "max_new_tokens": 50, "logprobs": True}
    drafted = checked_counts(pipeline(nodes, ramble).generate(PROMPT, **options))
    plain = checked_counts(pipeline(0, ramble).generate(PROMPT, **options))
    assert drafted.tokens == plain.tokens
    assert drafted.logprobs == plain.logprobs
    ids = (*PROMPT.encode(), *plain.tokens)
    target = OracleTarget(V, ramble)
    own = [float(target.logits(ids[:i])[ids[i]]) for i in range(START, len(ids))]
    assert drafted.logprobs == pytest.approx(own, abs=1e-12)


def test_log_probabilities_are_none_by_default() -> None:
    assert pipeline(4).generate(PROMPT, max_new_tokens=9).logprobs is None


# Seeds ------------------------------------------------------------------------------------------


@pytest.mark.covers("seeds")
def test_calls_without_a_seed_differ_and_return_the_seed_that_reproduces_them() -> None:
    shared = pipeline(4, ramble)
    options = {"temperature": 2.0, "max_new_tokens": 40}
    results = [shared.generate(PROMPT, **options) for _ in range(4)]
    assert len({result.seed for result in results}) == 4
    assert len({result.tokens for result in results}) == 4
    for result in results:
        repeated = shared.generate(PROMPT, seed=result.seed, **options)
        assert (repeated.tokens, repeated.seed) == (result.tokens, result.seed)


@pytest.mark.covers("seeds")
def test_an_interleaved_requests_seed_does_not_affect_another() -> None:
    shared = pipeline(4, ramble)
    options = {"temperature": 2.0, "max_new_tokens": 40}
    separate = shared.generate(PROMPT, seed=5, **options).tokens
    for other in range(3):
        runs = [
            shared.engine.open(shared.request(PROMPT, seed=seed, **options)) for seed in (5, other)
        ]
        while runs[0].finish_reason is None:
            for run in runs:
                if run.finish_reason is None:
                    shared.engine.step([run])
        assert tuple(runs[0].new_ids) == separate


def test_torchs_global_generator_does_not_affect_the_text() -> None:
    texts = set()
    for state in range(3):
        torch.manual_seed(state)
        texts.add(pipeline(4, ramble).generate(PROMPT, temperature=1.0, seed=1).tokens)
    assert len(texts) == 1


# Isolation --------------------------------------------------------------------------------------


@pytest.mark.covers("request-isolation")
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_second_request_equals_one_of_a_fresh_pipeline(temperature: float) -> None:
    options = {"temperature": temperature, "seed": 2, "max_new_tokens": 50}
    used = pipeline(4, ramble)
    used.generate("> something else, and long", max_new_tokens=70)
    used.generate("x", max_new_tokens=1)
    second, fresh = (
        used.generate(PROMPT, **options),
        pipeline(4, ramble).generate(PROMPT, **options),
    )
    assert second.tokens == fresh.tokens
    assert second.stats.committed_per_round == fresh.stats.committed_per_round


@pytest.mark.covers("request-isolation")
def test_a_request_after_an_exception_equals_one_of_a_fresh_pipeline() -> None:
    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[-1] > START + 9:
            raise RuntimeError("a processor broke")
        return scores

    def blanks(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * torch.nan if ids.shape[-1] > START + 9 else scores

    shared, options = pipeline(4, ramble), {"temperature": 1.0, "seed": 2, "max_new_tokens": 50}
    expected = pipeline(4, ramble).generate(PROMPT, **options).tokens
    for processor, error in ((fails, RuntimeError), (blanks, NonFiniteLogits)):
        with pytest.raises(error):
            shared.generate(PROMPT, logits_processor=[processor], **options)
        assert shared.generate(PROMPT, **options).tokens == expected


@pytest.mark.covers("request-isolation")
def test_interleaved_streams_equal_separate_ones() -> None:
    prompts, options = ["> ", "a", "bcd"], {"temperature": 1.0, "seed": 4, "max_new_tokens": 40}
    separate = [pipeline(4, ramble).generate(p, **options).tokens for p in prompts]
    shared = pipeline(4, ramble)
    interleaved: list[list[int]] = [[], [], []]
    streams = [shared.stream(p, **options) for p in prompts]
    for chunks in itertools.zip_longest(*streams):
        for tokens, chunk in zip(interleaved, chunks, strict=True):
            tokens.extend(chunk.tokens if chunk else ())
    assert [tuple(tokens) for tokens in interleaved] == separate


# Observers --------------------------------------------------------------------------------------


@pytest.mark.covers("callback-error")
def test_an_observer_that_raises_is_disabled_with_a_warning_and_decoding_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[RoundStats] = []
    calls: list[int] = []

    def breaks(stats: RoundStats) -> None:
        calls.append(stats.round)
        raise ValueError("observer broke")

    shared = pipeline(4)
    shared.observers = [breaks, seen.append]
    with caplog.at_level(logging.WARNING, logger="draftwood"):
        result = shared.generate(PROMPT, max_new_tokens=40)
    assert result.text == pipeline(0).generate(PROMPT, max_new_tokens=40).text
    assert calls == [0]
    assert shared.observers == [seen.append]
    assert [stats.round for stats in seen] == list(range(result.stats.rounds))
    (record,) = caplog.records
    assert "observer broke" in record.getMessage()
    assert "disabled" in record.getMessage()


def test_observers_are_called_after_the_rounds_tokens_were_streamed() -> None:
    shared, heard = pipeline(4), []
    shared.observers.append(lambda stats: heard.append(stats.round))
    stream = shared.stream(PROMPT, max_new_tokens=20)
    for expected, chunk in enumerate(stream, -1):
        if chunk.stats is not None:
            assert heard == list(range(expected))


# Requests ---------------------------------------------------------------------------------------


@pytest.mark.covers("prompt-length", "silent-argument")
def test_unknown_and_bad_options_raise_with_their_name() -> None:
    shared = pipeline(4)
    with pytest.raises(RequestError, match="unknown generation option 'temprature'"):
        shared.generate(PROMPT, temprature=1.0)
    bad = [
        *[("temperature", -1.0), ("top_p", 0.0), ("seed", -1), ("seed", 1.5), ("top_k", 0)],
        *[("top_k", 2.5), ("max_new_tokens", 2.5), ("max_new_tokens", "5")],
        *[("eos_token_id", ["a"]), ("eos_token_id", "5"), ("eos_token_id", [True])],
        *[("stop_strings", ""), ("stop_strings", [""]), ("stop_strings", [5])],
        *[("max_new_tokens", True), ("temperature", True), ("logprobs", 5), ("seed", True)],
        *[("temperature", float("inf")), ("repetition_penalty", float("inf"))],
        *[("sequence_bias", 5), ("sequence_bias", [5, 2.0]), ("sequence_bias", {5: 2.0})],
    ]
    for name, value in bad:
        with pytest.raises(RequestError, match=name):
            shared.generate(PROMPT, **{name: value})
    assert shared.generate(PROMPT, max_new_tokens=6).text == "wörld"


def test_a_sequence_bias_may_be_hugging_faces_mapping() -> None:
    options = GenerationOptions()
    pairs = options.override({"sequence_bias": (((5,), 2.0), ((7, 5), -1.0))})
    assert options.override({"sequence_bias": {(5,): 2.0, (7, 5): -1.0}}) == pairs


def test_one_end_token_and_one_stop_string_need_no_list() -> None:
    options = GenerationOptions().override({"eos_token_id": 5, "stop_strings": "end"})
    assert (options.eos_token_id, options.stop_strings) == ((5,), ("end",))


def test_messages_without_a_chat_template_raise() -> None:
    shared, messages = pipeline(4), [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError, match="chat template"):
        shared.generate(messages)
    with pytest.raises(RequestError, match="chat template"):
        Pipeline(OracleTarget(V, recite)).generate(messages)
    assert shared.generate(PROMPT, max_new_tokens=6).text == "wörld"


def test_a_request_overrides_the_pipelines_defaults_for_itself_only() -> None:
    shared = pipeline(0)
    shared.generation = GenerationOptions(max_new_tokens=3)
    assert shared.generate(PROMPT).text == "wö"
    assert shared.generate(PROMPT, max_new_tokens=6).text == "wörld"
    assert shared.generate(PROMPT).text == "wö"


@pytest.mark.covers("tiny-temperature")
@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-3, 1.0])
def test_huge_logits_stay_finite_at_every_temperature(temperature: float) -> None:
    class Loud(OracleTarget):
        def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
            return super().logits(prefix) * 1e4

    for nodes in (0, 4):
        shared = pipeline(nodes)
        shared.engine.target = shared.target = Loud(V, recite)
        result = shared.generate(PROMPT, temperature=temperature, seed=1, max_new_tokens=30)
        assert result.tokens == tuple(BYTES[:30])


@pytest.mark.covers("speculation-off")
def test_the_result_reports_whether_and_why_speculation_ran() -> None:
    ran = pipeline(4).generate(PROMPT, max_new_tokens=20)
    assert ran.speculation == {"ran": True, "reason": None}
    plainly = pipeline(0).generate(PROMPT, max_new_tokens=20)
    assert plainly.speculation["ran"] is False
    assert "no drafter" in plainly.speculation["reason"]
    short = pipeline(4).generate(PROMPT, max_new_tokens=2)
    assert short.speculation["ran"] is False
    assert "no round had room" in short.speculation["reason"]


def test_the_report_is_json_with_every_documented_field() -> None:
    import json

    result = pipeline(4).generate(PROMPT, max_new_tokens=30, logprobs=True)
    report = json.loads(json.dumps(result.as_dict()))
    assert report["tokens"] == list(BYTES[:30])
    assert set(report) >= {
        "text", "tokens", "finish_reason", "rounds", "accepted_length",
        "accepted_length_without_bonus", "acceptance_by_depth", "budget", "tokens_per_second",
        "timings", "speculation", "verifier", "kernels", "near_ties",
    }  # fmt: skip
    assert set(report["timings"]) == {
        "prefill", "draft", "grow", "verify", "judge", "commit", "other",
    }  # fmt: skip
    assert report["accepted_length"] == pytest.approx(29 / report["rounds"])


def test_a_request_can_be_stepped_by_its_caller() -> None:
    shared = pipeline(4)
    request = shared.request(PROMPT, max_new_tokens=20, seed=9)
    assert isinstance(request, Request)
    assert request.randomness == Seeded(9)
    run = shared.engine.open(request)
    while run.finish_reason is None:
        shared.engine.step([run])
    assert tuple(run.new_ids) == tuple(BYTES[:20])


def test_a_drafter_that_proposes_nothing_is_reported_as_no_speculation() -> None:
    empty = pipeline(4)
    empty.engine.drafter = OracleDrafter(lambda prefix, sampling: LookupPaths((), sampling, V))
    result = empty.generate(PROMPT, max_new_tokens=10)
    assert result.stats.drafted > 0
    assert result.speculation == {
        "ran": False,
        "reason": "the drafter never had a token to propose",
    }


def test_top_logprobs_are_the_models_most_likely_tokens_at_each_place() -> None:
    for nodes in (0, 4):
        result = pipeline(nodes).generate(PROMPT, max_new_tokens=12, top_logprobs=3)
        assert result.top_logprobs is not None
        assert result.logprobs is not None
        assert len(result.top_logprobs) == len(result.logprobs) == len(result.tokens)
        places = zip(result.tokens, result.logprobs, result.top_logprobs, strict=True)
        for token, logprob, best in places:
            assert len(best) == 3
            assert [value for _, value in best] == sorted((v for _, v in best), reverse=True)
            assert best[0] == (token, pytest.approx(logprob))  # greedy
        assert result.as_dict()["top_logprobs"] is not None
    assert pipeline(4).generate(PROMPT, max_new_tokens=4, logprobs=True).top_logprobs is None


def test_repr_names_the_parts_of_a_pipeline() -> None:
    assert repr(pipeline(4)).startswith("Pipeline('OracleTarget', OracleDrafter")
    assert "'match'" in repr(pipeline(0))
