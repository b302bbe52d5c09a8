"""Prompts of the demonstration: beginnings of Python code, written for it, in no training text."""

PROMPTS = (
    'class TicketQueue:\n    """Hand out numbered tickets in order."""\n\n    def __init__(self, ',
    "def read_settings(path, default=None):\n"
    '    """Return the settings stored at path, or default if there is no file."""\n    try:\n',
    "import unittest\n\n\nclass RingBufferTest(unittest.TestCase):\n\n    def setUp(self):\n",
    "def format_duration(seconds):\n    if seconds < 0:\n        raise ValueError(",
)
