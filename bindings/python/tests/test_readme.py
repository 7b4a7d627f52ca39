"""The README's Python program runs as it stands."""

import os
import re

import pytest

pytest.importorskip("numpy")
README = os.path.join(os.path.dirname(__file__), "..", "..", "..", "README.md")


@pytest.mark.skipif(not os.path.exists(README), reason="a package carried without the README")
def test_python_block(capsys):
    with open(README, encoding="utf-8") as f:
        (code,) = re.findall(r"```python\n(.*?)```", f.read(), re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("(17, 65)")
