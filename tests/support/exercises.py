"""The exercises in docs/: code that a page shows, as tests import it."""

from __future__ import annotations

import re

from support.server import ROOT


def of_the_docs(page: str, name: str, value: str = "") -> str:
    """Return the block of code in docs/`page` that defines this class or constant; value: how it begins."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    defined = re.compile(rf"class {name}[:(]|^{name} = {re.escape(value)}", re.MULTILINE)
    [code] = [block for block in blocks if defined.search(block)]
    return code
