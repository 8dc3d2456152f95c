"""`python -m pippin_kernels`: computes a product with each instruction set of this machine, and tells their names.

Ends with an error where the library cannot be used or they do not agree, as a check of an installed wheel.
"""

import sys

import numpy as np

from pippin_kernels import Kernels, Matrix, instruction_sets, int8_sets, why_unavailable


def main() -> int:
    reason = why_unavailable()
    if reason is not None:
        print(f"the kernels cannot be used: {reason}", file=sys.stderr)
        return 1
    random = np.random.default_rng(0)
    weights = random.standard_normal((48, 64)).astype(np.float32)
    x = random.standard_normal((5, 64)).astype(np.float32)
    for name in instruction_sets():
        found = Kernels(2, name).product(Matrix.dense(weights), x)
        if not np.allclose(found, x @ weights.T, atol=1e-4):
            print(f"{name} computes wrong products", file=sys.stderr)
            return 1
    print(f"instruction sets: {', '.join(instruction_sets())}; int8: {', '.join(int8_sets())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
