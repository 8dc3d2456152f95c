"""The engines: everything that runs a model, and the only room that imports mlx. Begin with `base.py`.

A model kind is a module or package here of its own name, with the two functions that `base.py` describes:
`language/`, `embeddings.py`, `reranking.py`, `transcription.py`, `speech/`, `images/` and `scripted/` (a model
without weights, for tests). What kinds share:

- `base.py`: the contract between the worker and an engine.
- `encoding.py`: padded batches across requests, for kinds that map each token sequence to a vector.
- `conversations.py`: what embeddings and reranking share, pictures by the language engine's vision among it.
- `blocking.py`: a thread of its own, for kinds whose library makes one long call.
- `pictures.py`, `sound.py`: images and audio, decoded and encoded within limits; `containers.py` opens files of sound
  and video.
- `device.py`: every decision that depends on the machine, and the report of it for `pippin doctor`.
- `cpu/`: what only a CPU needs.
"""
