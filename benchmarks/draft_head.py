"""Trains a draft head for a model of the llama family on what that model says, and writes it as EAGLE-3 has it.

    python -m benchmarks.draft_head --model FOLDER --out FOLDER [--texts FILE] [--passes 3]

The head is one decoder layer on the model's own states after three of its layers and the embedding of the token that
follows. It begins as what least squares find of the model's next state, which alone is right for a third of the
tokens of texts that it has not seen, and learns from there what the model says next: one token ahead, then two and
three, from its own states in place of the model's, as when it drafts. It knows the most frequent tokens of the
answers alone. What is written is a folder that `--draft-model-path` takes; how much of 1, 2 and 3 proposed tokens is
accepted in answers about subjects that it has not seen is printed, and `benchmarks.speculation --draft FOLDER`
measures what it is worth.

`--texts FILE` keeps the answers, one a line, or reads them from there. All is drawn from one seed. On a machine with
other work, `OPENBLAS_NUM_THREADS=1` before the command makes a step three times cheaper: threads wait for each other.
"""

import argparse
from pathlib import Path

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--held-out-texts", type=Path)
    parser.add_argument("--count", type=int, default=1410)
    parser.add_argument("--most", type=int, default=224, help="tokens of an answer")
    parser.add_argument("--words", type=int, default=8192, help="tokens that the head knows")
    parser.add_argument("--passes", type=int, default=3, help="over all answers")
    parser.add_argument("--bits", type=int, default=8)
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), None)
    # Only now: MLX must find the fast BLAS library when it is first imported.
    from benchmarks.head_training import Recipe, make

    make(
        Recipe(
            model=given.model,
            out=given.out,
            texts=given.texts,
            held_out_texts=given.held_out_texts,
            count=given.count,
            most=given.most,
            words=given.words,
            passes=given.passes,
            bits=given.bits,
        )
    )


if __name__ == "__main__":
    main()
