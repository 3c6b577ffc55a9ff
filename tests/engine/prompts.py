"""Varied prompts for the parity tests: languages, code, emoji, one token, several hundred tokens."""

from __future__ import annotations

_STORY = (
    "The lighthouse keeper climbed the stairs every evening at six, carrying a lamp, a book and a piece of bread. "
    "He had done so for thirty-one years, and in all that time he had missed only two evenings: once when the sea took "
    "the lower door, and once when his daughter was born. On this evening the wind came from the north-east. "
)

PROMPTS: list[str] = [
    "Hello",
    "The capital of France is",
    "Once upon a time",
    "Q: What is 17 + 25?\nA:",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nx = np.",
    "for (int i = 0; i < n; ++i) {",
    "SELECT name, COUNT(*) FROM users WHERE",
    "<html>\n  <body>\n    <h1>",
    '{"name": "Ada", "age": 36, "languages": [',
    "你好,请介绍一下中国的历史。",
    "日本の首都は",
    "Москва — столица",
    "مرحبا بالعالم",
    "Émile Zola était un écrivain français né à",
    "🎉🎊 Happy birthday! 🎂",
    "👩‍👩‍👧‍👦 family: 😀😃😄",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "3.14159265358979",
    "   leading spaces and\ttabs\n\n\nand newlines",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    _STORY,
    _STORY * 3 + "He opened the book and read:",
    "a",
]
