"""Plain stepping says what `generate` says, through and past the windows."""

import random

import torch

from draftwood.core.tree import TokenTree


def greedy(target, prompt, count):
    session = target.open()
    logits, text = session.prefill(prompt).logits, list(prompt)
    for _ in range(count):
        text.append(int(logits[-1].argmax()))
        logits = target.forward([(session, TokenTree.root(text[-1]))])[0].logits
        session.commit([0])
    return text


def test_plain_steps_equal_generate_over_200_tokens(
    architecture, attention, tiny_model, tiny_target
):
    target, model = tiny_target(architecture, attention), tiny_model(architecture, attention)
    for length, count in ((3, 200), (12, 40)):
        prompt = [random.Random(length).randrange(61) for _ in range(length)]
        with torch.inference_mode():
            expected = model.generate(
                torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0
            )[0].tolist()
        assert len(expected) == length + count
        assert greedy(target, prompt, count) == expected
