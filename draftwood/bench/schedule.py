"""In which order contestants decode."""

from collections.abc import Iterator, Sequence


def schedule(
    names: Sequence[str], prompts: int, repetitions: int
) -> Iterator[tuple[int, int, str]]:
    """(repetition, prompt's index, name): every name on each prompt before the next prompt.

    What drifts (clock speed, temperature, other load) so meets all of them alike, and they can be
    compared in pairs, prompt by prompt. Another one begins each time: no one always decodes on
    what its predecessor left in the caches.
    """
    for repetition in range(repetitions):
        for prompt in range(prompts):
            first = (repetition + prompt) % len(names)
            for name in (*names[first:], *names[:first]):
                yield repetition, prompt, name
