"""The README's Python runs as it stands, block after block, as a reader would type it."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), scope)
    printed = capsys.readouterr().out
    assert "('age', 'gender', 'shared')" in printed
