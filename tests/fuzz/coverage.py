"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.coverage TARGET SECONDS FOLDER`.

A process of its own: atheris ends it, and instruments what it imports. The exit status is 0 where nothing was found;
an input that fails is left in FOLDER, and read again first by the next run.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pippin"], enable_loader_override=False):
    from tests.fuzz.targets import targets

SLOWEST = 5  # seconds for one input
MEMORY = 3000  # megabytes


def main() -> None:
    name, seconds, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    target = targets()[name]
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    flags = [
        f"-max_total_time={seconds}",
        f"-timeout={SLOWEST}",
        f"-rss_limit_mb={MEMORY}",
        f"-artifact_prefix={folder}/",
        "-max_len=20000",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *flags], target.read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
