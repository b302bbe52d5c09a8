"""The order in which contestants decode."""

from collections.abc import Iterator, Sequence


def schedule(
    names: Sequence[str], prompts: int, repetitions: int
) -> Iterator[tuple[int, int, str]]:
    """Yield (repetition, prompt's index, name), with all names on a prompt before the next prompt.

    Drifts (clock speed, temperature, other load) then affect all names alike, and they can be
    compared in pairs, prompt by prompt. The first name rotates, so that none always decodes with
    the caches that the same other one leaves.
    """
    for repetition in range(repetitions):
        for prompt in range(prompts):
            first = (repetition + prompt) % len(names)
            for name in (*names[first:], *names[:first]):
                yield repetition, prompt, name
