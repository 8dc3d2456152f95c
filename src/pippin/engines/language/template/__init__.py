"""Chat templates: Jinja programs from a model's folder. Begin with `template.py`.

- `template.py`: compiles and renders a template.
- `sandbox.py`: the Jinja environment, which bounds the time and memory of a rendering.
- `traits.py`: which parts of a conversation a template can write, found by rendering samples.
"""
