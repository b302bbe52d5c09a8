from draftwood.testing.suites import DrafterSuite


class TestBigram(DrafterSuite):
    plugin = "bigram"
    options = {"depth": 3}  # noqa: RUF012
