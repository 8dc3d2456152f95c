"""Draws what the benchmarks measured, for docs/measurements/engine.md.

    python -m benchmarks.plots [--results FOLDER] [--to docs/plots]

Reads the newest growth-*.json, and of all compare-*.json the newest run of each server, scenario and number of clients.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.svg import Line, chart

ROOT = Path(__file__).parent.parent
Figures = dict[tuple[str, str], dict[int, dict[str, float | None]]]
"""By scenario and server, then by clients."""

GROWTH = {
    "prompt": ("First token of a cold prompt", "prompt tokens", "ms"),
    "cached": ("First token of a known prompt and 16 new tokens", "cached tokens", "ms"),
    "clients": ("A step of decoding", "streams", "ms"),
    "tree": ("Finding a prompt of 1,500 tokens in the prefix cache", "blocks in the cache", "ms"),
}
COMPARED = {
    "tokens_per_second": ("Output tokens a second", "tokens/s", 1.0),
    "first_median": ("Median time to the first token", "ms", 1000.0),
    "gap_p99": ("99th percentile of the gap between tokens", "ms", 1000.0),
    "cpu_per_token": ("CPU time per token", "ms", 1000.0),
}


def growth(results: Path) -> Iterator[tuple[str, str]]:
    """Name and drawing of each chart of the newest run."""
    runs = sorted(results.glob("growth-*.json"))
    if not runs:
        return
    for name, points in json.loads(runs[-1].read_text()).items():
        title, across, up = GROWTH[name]
        line = Line("Pippin", [(x, 1000 * y) for x, y in points])
        yield f"growth-{name}", chart(title, across, up, [line], logarithmic=name == "tree")


def compared(results: Path) -> Iterator[tuple[str, str]]:
    """A chart of each figure of a scenario that was run with several numbers of clients."""
    found: Figures = defaultdict(dict)
    for path in sorted(results.glob("compare-*.json")):
        for run in json.loads(path.read_text()):
            found[run["scenario"], run["peer"]][run["clients"]] = run
    for scenario in sorted({scenario for scenario, _ in found}):
        for figure, (title, up, factor) in COMPARED.items():
            lines = []
            for (of, peer), runs in sorted(found.items()):
                points = [
                    (clients, value * factor)
                    for clients, run in sorted(runs.items())
                    if (value := run.get(figure)) is not None
                ]
                if of == scenario and len(points) > 1:
                    lines.append(Line(peer, points))
            if lines:
                yield (
                    f"{scenario}-{figure}".replace("_", "-"),
                    chart(f"{title}: {scenario}", "clients", up, lines),
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "plots")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for name, drawing in [*growth(options.results), *compared(options.results)]:
        path = options.to / f"{name}.svg"
        path.write_text(drawing)
        print(path)


if __name__ == "__main__":
    main()
