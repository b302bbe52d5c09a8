"""The drafter `bigram`: follows each token with what followed it last in this text."""

from draftwood import Drafter, DraftSession, LookupPaths


class BigramSession(DraftSession):
    def __init__(self, sampling, vocab_size, after=(), last=None):
        self.sampling, self.vocab_size = sampling, vocab_size
        self.after, self.last = dict(after), last

    def commit(self, tokens, features):
        for token in tokens:
            self.after[self.last], self.last = token, token

    def fork(self):
        return BigramSession(self.sampling, self.vocab_size, self.after, self.last)


class Bigram(Drafter):
    def __init__(self, options):
        self.depth = options.depth

    def open(self, target, sampling):
        return BigramSession(sampling, target.vocab_size)

    def propose(self, work):
        return [self._follow(item.session, item.anchor) for item in work]

    def _follow(self, session, token):
        path = []
        while token in session.after and len(path) < self.depth:
            token = session.after[token]
            path.append(token)
        return LookupPaths((tuple(path),) if path else (), session.sampling, session.vocab_size)
