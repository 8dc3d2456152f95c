"""Prints the float32 logits behind some tokens, as transformers computes them from a GGUF file.

python tests/oracles/gguf_logits.py FILE.gguf 1,2,3
"""

import json
import sys
from pathlib import Path


def main(path: Path, ids: list[int]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    json.dump(logits.tolist(), sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(number) for number in sys.argv[2].split(",")])
