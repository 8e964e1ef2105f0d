#!/usr/bin/env python3
"""Tables in Markdown and a bar chart of what newton_schulz.py has measured.

    python benches/peers/newton_schulz_report.py
    python benches/peers/newton_schulz_report.py --chart docs/peers-newton-schulz.png --page docs/peers.md
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

from markdown import Sections, machine_lines, publish
from worker import REPOSITORY

TITLES = {
    "dmuon_f32": "dmuon F32",
    "dmuon_bf16_products": "dmuon Bf16Products",
    "torch_muon": "torch.optim.Muon (bf16)",
    "torch_gram_highest": "Gram in torch, BLAS",
    "torch_gram_medium": "Gram in torch, oneDNN",
}

OURS = ["dmuon_f32", "dmuon_bf16_products"]
COLORS = dict(zip(TITLES, ["#c2410c", "#fb923c", "#1d4ed8", "#93c5fd", "#64748b"]))


@dataclass(frozen=True)
class Goal:
    """How many times faster than torch one of ours was meant to be, in this project's plan."""

    shapes: tuple[str, ...]
    ours: str
    # Over torch.optim.Muon's function and over Gram in torch's operations.
    over_muon: float | None = None
    over_gram: float | None = None
    # Of every count by default.
    threads: int | None = None


SQUARES = ("1x512x512", "1x1024x1024", "1x2048x2048")
WIDE = ("1x1024x4096", "1x768x3072")

GOALS = [
    Goal(SQUARES, "dmuon_bf16_products", over_muon=1.3, over_gram=5.0),
    Goal(SQUARES, "dmuon_f32", over_gram=2.8),
    Goal(WIDE, "dmuon_f32", over_muon=1.5, over_gram=4.0),
    Goal(WIDE[:1], "dmuon_bf16_products", over_muon=1.8),
    Goal(("8x512x2048",), "dmuon_f32", over_muon=1.5, over_gram=4.0),
    Goal(("74x24x10240",), "dmuon_f32", over_muon=14.0, over_gram=9.0, threads=2),
]


@dataclass(frozen=True)
class Case:
    """One shape at one number of threads."""

    shape: str
    threads: int
    # Median seconds, by contender.
    seconds: dict[str, float]
    errors: dict[str, float]

    @staticmethod
    def of(record: dict[str, Any]) -> "Case":
        seconds = {key: statistics.median(runs) for key, runs in record["seconds"].items()}
        shape = "x".join(map(str, record["shape"]))
        return Case(shape, record["threads"], seconds, record.get("errors", {}))

    @property
    def name(self) -> str:
        return " × ".join(self.shape.removeprefix("1x").split("x"))

    @property
    def gram(self) -> float:
        """Seconds of Gram in torch, with whichever library is faster here."""
        return min(self.seconds["torch_gram_highest"], self.seconds["torch_gram_medium"])

    @property
    def muon(self) -> float:
        return self.seconds["torch_muon"]


def times_table(cases: list[Case]) -> Iterator[str]:
    yield f"| matrices | threads | {' | '.join(TITLES.values())} |"
    yield "|---|---" + "|---:" * len(TITLES) + "|"
    for case in cases:
        times = (f"{1e3 * case.seconds[key]:.1f}" if key in case.seconds else "–" for key in TITLES)
        yield f"| {case.name} | {case.threads} | {' | '.join(times)} |"


def ratios_table(cases: list[Case]) -> Iterator[str]:
    yield "| matrices | threads | F32 / Muon | F32 / Gram | Bf16Products / Muon | Bf16Products / Gram |"
    yield "|---|---" + "|---:" * 4 + "|"
    for case in cases:
        ratios = (
            f"{theirs / case.seconds[ours]:.2f}×" if ours in case.seconds else "–"
            for ours in OURS for theirs in (case.muon, case.gram)
        )
        yield f"| {case.name} | {case.threads} | {' | '.join(ratios)} |"


def errors_table(cases: list[Case]) -> Iterator[str]:
    yield f"| matrices | {' | '.join(TITLES.values())} |"
    yield "|---" + "|---:" * len(TITLES) + "|"
    checked = {case.shape: case for case in cases if case.errors}
    for case in checked.values():
        errors = (f"{case.errors[key]:.0e}" if key in case.errors else "–" for key in TITLES)
        yield f"| {case.name} | {' | '.join(errors)} |"


def goals_table(cases: list[Case]) -> Iterator[str]:
    yield "| matrices | ours | beside | goal | 1 thread | 2 threads | |"
    yield "|---|---|---|---:|---:|---:|---|"
    for goal in GOALS:
        for shape in goal.shapes:
            found = {case.threads: case for case in cases if case.shape == shape}
            found = {n: case for n, case in found.items() if goal.ours in case.seconds}
            for beside, factor in (("muon", goal.over_muon), ("gram", goal.over_gram)):
                if factor is not None and found:
                    yield goal_row(goal, beside, factor, found)


def goal_row(goal: Goal, beside: str, factor: float, found: dict[int, Case]) -> str:
    ratios = {n: getattr(case, beside) / case.seconds[goal.ours] for n, case in found.items()}
    judged = [ratio for n, ratio in ratios.items() if goal.threads in (None, n)]
    verdict = "met" if judged and min(judged) >= factor else "**missed**"
    name, title = next(iter(found.values())).name, TITLES[goal.ours].removeprefix("dmuon ")
    peer = {"muon": "torch.optim.Muon", "gram": "Gram in torch"}[beside]
    cells = (f"{ratios[n]:.2f}×" if n in ratios else "–" for n in (1, 2))
    return f"| {name} | {title} | {peer} | {factor}× | {' | '.join(cells)} | {verdict} |"


def draw(cases: list[Case], about: dict[str, Any], path: Path) -> None:
    """Speed relative to torch.optim.Muon's function, one panel for each number of threads."""
    matplotlib.use("agg")
    counts = sorted({case.threads for case in cases})
    figure, panels = plt.subplots(
        len(counts), 1, figsize=(10, 3.4 * len(counts)), squeeze=False, layout="constrained"
    )
    keys = [key for key in TITLES if any(key in case.seconds for case in cases)]
    for panel, threads in zip(panels[:, 0], counts):
        shown = [case for case in cases if case.threads == threads]
        for position, key in enumerate(keys):
            middle = [i + (position - (len(keys) - 1) / 2) * 0.16 for i in range(len(shown))]
            heights = [case.muon / case.seconds.get(key, math.inf) for case in shown]
            bars = panel.bar(middle, heights, 0.15, label=TITLES[key], color=COLORS[key])
            panel.bar_label(bars, [f"{h:.1f}" if h else "" for h in heights], fontsize=7, padding=1)
        panel.axhline(1, color="#1d4ed8", linewidth=0.8, linestyle=":")
        panel.set_xticks(range(len(shown)), [case.name for case in shown])
        panel.set_title(f"{threads} thread{'s' if threads > 1 else ''}", loc="left", fontsize=10)
        panel.set_ylabel("speed, torch.optim.Muon = 1", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(fontsize=8, ncols=len(keys), frameon=False, loc="lower left",
                        bbox_to_anchor=(0, 1.12))
    figure.supxlabel(f"{about['cpu']}, torch {about['torch']}, {about['blas'].upper()}", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = REPOSITORY / "out/peers"
    parser.add_argument("--records", type=Path, default=out / "newton_schulz.json", metavar="FILE")
    parser.add_argument("--chart", type=Path, default=out / "newton_schulz.png", metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE",
                        help="Markdown page whose marked tables are replaced")
    args = parser.parse_args()
    loaded = json.loads(args.records.read_text())
    cases = [Case.of(record) for record in loaded["records"]]
    draw(cases, loaded["machine"], args.chart)
    busy = [cores for record in loaded["records"] for cores in record["busy_cores"]]
    sections: Sections = {
        "Machine": machine_lines(loaded["machine"], busy),
        "Median milliseconds": times_table(cases),
        "How many times faster ours is (Gram: the faster library)": ratios_table(cases),
        "Relative error against f64": errors_table(cases),
        "Goals": goals_table(cases),
    }
    publish(sections, args.page, "newton_schulz")


if __name__ == "__main__":
    main()
