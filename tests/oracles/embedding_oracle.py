"""Writes what sentence-transformers makes of the test texts: tests/data/minilm.npy, float32 [200, 384].

    python tests/oracles/embedding_oracle.py FOLDER_OF_ALL_MINILM_L6_V2

Needs sentence-transformers on torch, which the project itself does not.
"""

import sys
from pathlib import Path

import numpy as np
from embedding_texts import texts
from sentence_transformers import SentenceTransformer

if __name__ == "__main__":
    model = SentenceTransformer(sys.argv[1], device="cpu")
    vectors = model.encode(texts(), batch_size=8, convert_to_numpy=True)
    np.save(Path(__file__).parent.parent / "data" / "minilm.npy", vectors.astype(np.float32))
    print(vectors.shape, vectors[:3] @ vectors[:3].T)
