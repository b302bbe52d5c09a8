"""Prompts of the demonstration: beginnings of Python code, written for it, in no training text.

Chosen by what plain decoding makes of them: a model of four million parameters soon repeats itself,
and text that does says little about drafting. Each ends where a word ends: a tokenizer joins the
blanks that follow to the next word.
"""

PROMPTS = (
    "import os\n\ndef walk(path):\n    try:\n        names = os.listdir(path)\n    except",
    'def join_lines(lines, sep="\\n"):\n    """Join lines with sep."""\n    result = []\n'
    "    for line in lines:",
    'def read_config(filename):\n    """Read a configuration file."""\n'
    "    if not os.path.exists(filename):",
    'def find_modules(path, prefix=""):\n    """Return the names of all modules in path."""\n'
    "    modules = []",
)
