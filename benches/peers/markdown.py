"""What both reports share: the machine in words, and where tables go."""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Sections = dict[str, Iterable[str]]


def machine_lines(about: dict[str, Any], busy_cores: list[float]) -> Iterator[str]:
    """`busy_cores`: what other programs used whenever one looked."""
    libraries = "; ".join(about["libraries"])
    yield f"* {about['cpu']}; torch {about['torch']}, BLAS: {about['blas']}; {libraries}"
    for threads, rates in about["gemm_gflops"].items():
        yield (
            f"* torch's plain 1024³ product on {threads} threads, GFLOP/s: f32 {rates['f32_highest']} by "
            f"its BLAS, {rates['f32_medium']} by oneDNN; bf16 {rates['bf16']}"
        )
    for name, value in about["environment"].items():
        yield f"* `{name}={value}`"
    disturbed = sum(busy > 0.1 for busy in busy_cores)
    yield (
        f"* other programs used more than a tenth of a core {disturbed} of the {len(busy_cores)} times "
        "that it was looked at, between runs"
    )


def publish(sections: Sections, page: Path | None, mark: str) -> None:
    """Prints titled tables; in `page` they replace what lies between `mark`'s comments."""
    tables = "\n".join(
        "\n".join([f"**{title}**", "", *lines, ""]) for title, lines in sections.items()
    )
    print(tables)
    if page is None:
        return
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    text, count = between.subn(lambda _: f"{begin}\n{tables}{end}", page.read_text())
    if count != 1:
        sys.exit(f"{page} should hold {begin} and {end} once")
    page.write_text(text)
