"""Chat templates: Jinja programs from a model's folder. Begin with `template.py`.

- `template.py`: compiles and renders a template in a Jinja environment that bounds its time and memory.
- `traits.py`: which parts of a conversation a template can write, found by rendering samples.
"""
