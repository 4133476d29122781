"""The exercises in docs/: code that a page shows, as tests import it."""

from __future__ import annotations

import re

from support.server import ROOT


def of_the_docs(page: str, name: str) -> str:
    """Return the block of code in docs/`page` that defines this class or constant."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [code] = [block for block in blocks if re.search(rf"class {name}[:(]|^{name} = ", block, re.MULTILINE)]
    return code
