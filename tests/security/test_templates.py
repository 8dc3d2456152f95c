"""Threat 37: a chat template is a program from whoever published the model. It gets no Python, no time, no memory."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import jinja2
import pytest

from pippin.catalog.info import chat_templates
from pippin.engines.language.template import template as template_sandbox
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal, TemplateTooCostly

GROW = "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(40) %}{% set ns.x = STEP %}{% endfor %}"
BOMBS = {
    "lipsum": "{{ lipsum(n=100000000) }}",
    "center": "{{ 'a'|center(1000000000) }}",
    "method": "{{ 'a'.ljust(1000000000) }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "nested format": "{{ '{:{w}}'.format(1, w='1000000000') }}",
    "percent": "{{ '%*d' % (1000000000, 1) }}",
    "indent": "{{ 'a\nb'|indent(1000000000) }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "tojson": "{{ [1]|tojson(indent=1000000000) }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "range": "{% for i in range(1000000000) %}x{% endfor %}",
    "doubling": GROW.replace("STEP", "ns.x ~ ns.x"),
    "adding": GROW.replace("STEP", "ns.x + ns.x"),
    "replacing": GROW.replace("STEP", "ns.x.replace('a', ns.x)"),
    "replacing filter": GROW.replace("STEP", "ns.x|replace('a', ns.x)"),
    "joining": GROW.replace("STEP", "ns.x.join(ns.x)"),
    "joining filter": GROW.replace("STEP", "ns.x|join(ns.x)"),
    "translating": GROW.replace("STEP", "ns.x.translate({97: ns.x})"),
    "nesting": GROW.replace("STEP", "[ns.x, ns.x]") + "{{ ns.x }}",
    "nesting to JSON": GROW.replace("STEP", "[ns.x, ns.x]") + "{{ ns.x|tojson }}",
    "comparing": GROW.replace("STEP", "[ns.x, ns.x]") + "{{ ns.x == ns.x }}",
    "comparing tuples": GROW.replace("STEP", "(ns.x, ns.x)") + "{{ (ns.x, 1) < (ns.x, 2) }}",
    "hashing": GROW.replace("STEP", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    "mapping": GROW.replace("STEP", "{'a': ns.x, 'b': ns.x}"),
    "adding lists": GROW.replace("'aaaaaaaaaa'", "[1]").replace("STEP", "[ns.x] + [ns.x]"),
    "numbers": GROW.replace("'aaaaaaaaaa'", "99999").replace("STEP", "ns.x * ns.x"),
}
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ range.__self__.check.__globals__ }}",
    "{{ messages.append(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
]


def render(source: str) -> str:
    return ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], {})


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_asks_for_the_whole_machine_is_refused_at_once(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    with pytest.raises(TemplateRefusal):
        render(BOMBS[name])
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10  # KiB


@pytest.mark.parametrize(
    "source",
    [
        "{% set s = 'a' * 9999 %}{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{% set x = f(60) %}",
    ],
    ids=["loops", "macros"],
)
def test_a_template_without_end_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MOST_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(TemplateTooCostly):
        render(source)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_reaches_nothing_outside(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        render(source)


@pytest.mark.parametrize("source", ["{{ ''|attr('__class__') }}", "{{ '{0.__class__}'.format('') }}"])
def test_what_is_unsafe_and_not_raised_is_empty(source: str) -> None:
    assert render(source) == ""


def test_ordinary_templates_render_as_ever() -> None:
    source = (
        "{% for message in messages %}{{ loop.index }}/{{ loop.length }}{% if loop.last %}!{% endif %}"
        "{{ '<' ~ message.role ~ '>' + message['content'] * 2 }}{{ message|tojson }}"
        "{{ ['a', 'b']|join(', ') }}{{ 'a-b'.replace('-', '+') }}{{ '%s' % 3 }}{{ 'a'.center(3) }}{% endfor %}"
    )
    assert render(source) == '1/1!<user>xx{"role": "user", "content": "x"}a, ba+b3 a '


HOSTILE = {
    "calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "calls itself beside itself": "{% macro f() %}{{ f() ~ f() }}{% endmacro %}{{ f() }}",
    "loops over itself": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "grows a list": GROW.replace("'aaaaaaaaaa'", "[1]").replace("STEP", "ns.x + ns.x"),
    "grows by its messages": "{% for i in range(999999) %}{{ messages|tojson * 9999 }}{% endfor %}",
    "an endless integer": "{{ " + "9" * 100_000 + " }}",
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks": "{% if a %}" * 3000 + "{% endif %}" * 3000,
    "loops in loops": "{% for a in b %}" * 60 + "{% endfor %}" * 60,
    "a long sum": "{{ " + "+".join(["1"] * 20_000) + " }}",
    "many filters": "{{ 1" + "|string" * 20_000 + " }}",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_models_template_that_never_ends_or_never_stops_growing_is_refused_in_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the folder to the refusal: the load fails, or a rendering does."""
    monkeypatch.setattr(template_sandbox, "MOST_SECONDS", 0.5)
    (tmp_path / "chat_template.jinja").write_text(HOSTILE[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    source = chat_templates(tmp_path, None).get("default")
    assert source is not None
    with pytest.raises((TemplateRefusal, jinja2.TemplateSyntaxError)):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], {})
    assert time.monotonic() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700 << 10  # KiB


def test_an_operation_that_holds_the_interpreter_for_ever_ends_the_process() -> None:
    """Where nothing in Python runs any more, a watch in C does."""
    code = (
        "from pippin.engines.language.template.template import WATCH, ChatTemplate\n"
        "WATCH.begin(0.5)\n"
        "ChatTemplate('{{ 1 }}', {}).render([], {})\n"
        "import time; time.sleep(0.7)\n"
        "a, b = [0], [0]\n"
        "for _ in range(40): a, b = [a, a], [b, b]\n"
        "print('begins', flush=True)\n"
        "ChatTemplate('{{ a == b }}', {}).render([], {'a': a, 'b': b})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "begins\n")
    assert "Timeout" in ended.stderr
