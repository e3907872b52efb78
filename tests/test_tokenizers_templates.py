"""Chat templates that are hostile, measured in their process; and those in use, against transformers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from handgrad.core.errors import DataError
from handgrad.data.chat_template import WORKER, rendered

MOST_MB, MOST_S = 500, 10
LONG = "{% set x = 'a' * 1000000 %}"
GROWN = "{% set ns = namespace(x=1, y=1) %}{% for i in range(60) %}"
HOSTILE = {
    "replace": '{{ ("a" * 100000).replace("a", "b" * 100000) }}',
    "replace, as a function": '{% set f = ("a" * 100000).replace %}{{ f("a", "b" * 100000) }}',
    "replace, mapped": '{{ ["a" * 100000] | map("replace", "a", "b" * 100000) | list }}',
    "list of references": LONG + "{% set y = [x] * 1000000 %}{{ y }}",
    "list of references, written": LONG + "{{ [x] * 2000 }}",
    "list of references, as a text": LONG + "{{ ([x] * 2000) | string | length }}",
    "nested": "{% set a = [1] * 1000 %}{% set b = [a] * 1000 %}{% set c = [b] * 1000 %}{{ c }}",
    "nested, json": "{% set a = [1] * 1000 %}{% set b = [a] * 1000 %}{% set c = [b] * 1000 %}{{ c | tojson }}",
    "nested, doubled": GROWN + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "nested, in a namespace": GROWN + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns }}",
    "nested, in a view": GROWN + "{% set ns.x = {1: ns.x, 2: ns.x} %}{% endfor %}{{ ns.x.items() }}",
    "squares": GROWN + "{% set ns.x = (ns.x + 9) * (ns.x + 9) %}{% endfor %}{{ ns.x }}",
    "power": "{{ 10 ** 99 ** 9 }}",
    "round": "{{ 1 | round(1000000000) }}",
    "to_bytes": "{{ (1).to_bytes(999999999, 'big') }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "format, a width": '{{ "%900000000d" | format(1) }}',
    "format, a width as a value": '{{ "%*d" | format(900000000, 1) }}',
    "format, the method": '{{ "{:>900000000}".format(1) }}',
    "format, by its name": '{{ "{:>900000000}"["format"](1) }}',
    "format, many": '{{ ("%s" * 900) % (("a" * 1000000,) * 900) }}',
    "format, spelled": '{{ ("%r" * 60000) | format("a" * 60000) }}',
    "expandtabs": '{{ ("\t" * 1000000).expandtabs(3000) }}',
    "translate": '{{ ("a" * 1000000).translate({97: "x" * 1000000}) }}',
    "zfill": '{{ "1".zfill(900000000) }}',
    "indent": '{{ ("\n" * 100000) | indent(100000) }}',
    "join": '{{ ("x" * 1000000).join(["a"] * 1000) }}',
    "join, filter": '{{ range(100000) | join("x" * 1000000) }}',
    "json, indented": '{{ [[[1] * 1000] * 10] | tojson(indent="x" * 100000) }}',
    "json, deep": GROWN.replace("60", "900")
    + "{% set ns.x = [ns.x, [1] * 60] %}{% endfor %}{{ ns.x | tojson(indent=16) }}",
    "json, separators": '{{ [1] * 60000 | tojson(separators=["x" * 1000000, ":"]) }}',
    "growing list": "{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = ns.x + ['a' * 1000000] %}"
    "{% endfor %}{{ ns.x | length }}",
    "growing dict": "{% set ns = namespace(x={}) %}{% for i in range(2000) %}"
    '{% set ns.x = dict(ns.x, **{"k%d" % i: "a" * (1000000 - i)}) %}{% endfor %}{{ ns.x | length }}',
    "growing list, written": "{% set ns = namespace(x=0) %}{% for i in range(99999) %}{% set ns.x = [ns.x,"
    + "1," * 20000
    + "] %}{% endfor %}",
    "many names": "".join(f"{{% set a{i} = 'x' * 1000000 %}}" for i in range(3000)),
    "many slices": LONG + "".join(f"{{% set a{i} = x[1:] %}}" for i in range(3000)),
    "a block": "{% set x %}{% for i in range(90000) %}" + "y" * 100000 + "{% endfor %}{% endset %}{{ x | length }}",
    "a macro": "{% macro f() %}{% for i in range(90000) %}{{ 'a' * 10000 }}{% endfor %}{% endmacro %}{% set y = f() %}",
    "a macro, calling itself": "{% macro f(n, x) %}{% set y = x ~ 'a' %}{{ f(n - 1, y) if n }}{% endmacro %}"
    "{{ f(300, 'a' * 1000000) }}",
    "a macro, of many": "{% macro f(n) %}{{ f(n - 1, *range(60000)) if n }}{% endmacro %}{{ f(99) }}",
    "an error": GROWN + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ [1][ns.x].a }}",
    "a date": '{{ strftime_now("%9999999d" * 14) }}',
    "counting": LONG + '{% for i in range(90000) %}{% if x.count("ab") %}{% endif %}{% endfor %}',
}
MEASURE = """
import importlib.util, json, os, signal, sys, time
sys.path += json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
for name, template, by_system in json.load(sys.stdin):
    r, w = os.pipe()
    began, pid = time.monotonic(), os.fork()
    if not pid:
        signal.alarm(9)  # as the caller's clock
        if by_system:
            worker.bound()
        os.write(w, json.dumps(worker.render(template, {"messages": []}))[:4000].encode())
        os._exit(0)
    os.close(w)
    used = os.wait4(pid, 0)[2]
    seconds, text = time.monotonic() - began, os.read(r, 9999).decode()
    os.close(r)
    mb = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    print(json.dumps([name, by_system, seconds, mb, text]), flush=True)
"""


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, bool], tuple[float, float, str]]:
    """(case, with the system's bounds) -> seconds, megabytes, answer; each in a process of its own."""
    cases = [(name, template, by_system) for name, template in HOSTILE.items() for by_system in (True, False)]
    cases = [case for case in cases if case[0] != "counting" or case[2]]  # 9 s, and no memory
    done = subprocess.run(
        [sys.executable, "-I", "-c", MEASURE, str(WORKER), json.dumps(sys.path)],
        input=json.dumps(cases).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return {(name, by): tuple(found) for name, by, *found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.skipif(sys.platform == "win32", reason="measures by fork and wait4; run it on another system")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_bounded_in_memory_and_time(name: str, measured: Any) -> None:
    seconds, mb, answer = measured[name, True]
    assert seconds < MOST_S
    assert 5 < mb < MOST_MB
    assert not answer.startswith('{"text"')
    if (name, False) in measured:  # as on a system that bounds nothing
        seconds, mb, answer = measured[name, False]
        assert seconds < MOST_S
        assert mb < MOST_MB
        assert answer.startswith(('{"ended"', '{"refused"', '{"failed"'))


@pytest.mark.parametrize("end", ["{{ ns.x == ns.y }}", "{{ {ns.x: 1} | length }}"])
def test_a_template_that_computes_for_ever_is_stopped(end: str) -> None:
    began = time.monotonic()
    with pytest.raises(DataError, match=r"chat template was ended: it takes (too much|more than)"):
        rendered(GROWN + "{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}{% endfor %}" + end)
    assert time.monotonic() - began < MOST_S


def test_a_python_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(
        DataError, match="needs a Python of its own, and /nowhere/python cannot be started: No such file"
    ):
        rendered("a")


def test_what_a_template_says_is_shown_printable_and_short() -> None:
    with pytest.raises(DataError) as found:
        rendered("{{ raise_exception('a\nb\x1b[31m' ~ 'x' * 9999) }}")
    assert str(found.value).isprintable()
    assert r"refuses these messages: a\nb\x1b[31mxxx" in str(found.value)
    assert len(str(found.value)) < 400


CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n'"
    " }}{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set told = messages[0]['content'] %}
{% else %}{% set rest = messages %}{% set told = false %}{% endif %}
{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}
{% if loop.index0 == 0 and told != false %}{% set content = '<<SYS>>\\n' + told + '\\n<</SYS>>\\n\\n' + m['content'] %}
{% else %}{% set content = m['content'] %}{% endif %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
LLAMA3 = """{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set told = messages[0]['content'] | trim %}
{%- set messages = messages[1:] %}{%- else %}{%- set told = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" + told + "<|eot_id|>" }}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
MISTRAL = """{%- set told = messages | selectattr('role', 'equalto', 'system') | map(attribute='content')
| join('\\n') %}
{%- set turns = messages | rejectattr('role', 'equalto', 'system') | list %}{%- set ns = namespace(index=0) %}
{{- bos_token }}{%- for m in turns %}{%- if m.role == 'user' %}
{%- if loop.last and told %}{{- '[INST] ' ~ told ~ '\\n\\n' ~ m.content ~ '[/INST]' }}{%- else %}
{{- '[INST] ' + m.content + '[/INST]' }}{%- endif %}{%- else %}{{- ' ' ~ m.content | trim ~ eos_token }}{%- endif %}
{%- set ns.index = ns.index + 1 %}{%- endfor %}{{- ns.index }}"""
QWEN = """{%- macro content_of(content) %}{%- if content is string %}{{- content }}{%- else %}
{%- for part in content %}{{- part.text }}{%- endfor %}{%- endif %}{%- endmacro %}
{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n' }}{%- for t in tools %}{{- "\\n" }}
{{- t | tojson(ensure_ascii=False) }}{{- t.function.parameters.items() | list | length }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endif %}{%- set ns = namespace(multi=true, last=messages | length - 1) %}
{%- for m in messages[::-1] %}{%- set index = (messages | length - 1) - loop.index0 %}
{%- if ns.multi and m.role == "user" and not (m.content.startswith('<tool>') and m.content.endswith('</tool>')) %}
{%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}
{%- for m in messages %}{%- set content = content_of(m.content) %}{%- set thought = '' %}
{%- if m.role == 'assistant' and '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if loop.index0 > ns.last and thought %}{{- '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' }}{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
OTHERS = """{% for m in messages %}{% generation %}{{ m.content | capitalize | replace('a', 'b') }}{% endgeneration %}
{{ '%s: %d' | format(m.role, loop.index) }} {{ 'n=%s' % loop.length }} {{ [1, (2, 3)] + [m.role] }}
{{ loop.cycle('x', 'y') }}
{% if not loop.last %}{% continue %}{% endif %}{{ {'a': m.get('content', ''), 'z': none} | tojson(sort_keys=true) }}
{{ {'b': 1, 'a': 2} | dictsort }}{{ m.content.replace('hi', 'ho').upper().title() }}{{ -(m.content | length) }}
{{ 7 // 2 }}
{% filter upper %}{{ m.role }}{% endfilter %}
{% set text %}{{ m.role }}!{% endset %}{{ text | indent(2, true) }}{{ nothing }}
{% endfor %}{{ ['b', 'a'] | sort | join(', ') }}{{ 1.5 * 2 }}{{ 'ab' * 3 }}
{{ messages[0]['role'][1:3] }}{{ range(3) | list }}"""
TURNS = [
    {"role": "user", "content": " hi ä<b>'\"\n"},
    {"role": "assistant", "content": "<think>\nso\n</think>\n\nyes"},
    {"role": "user", "content": "and?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"x": {"type": "number"}, "é": [1, True, None]}}}]


@pytest.mark.parametrize("template", [CHATML, LLAMA2, LLAMA3, MISTRAL, QWEN, OTHERS])
@pytest.mark.parametrize("told", [[], [{"role": "system", "content": "be <kind>"}]])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_template_writes_what_it_writes_in_transformers(template: str, told: Any, tools: Any) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="compares with transformers")
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    expected, _ = utils.render_jinja_template(
        conversations=[told + TURNS], tools=tools, chat_template=template, add_generation_prompt=True, **named
    )
    found = rendered(template, messages=told + TURNS, tools=tools, add_generation_prompt=True, documents=None, **named)
    assert found == expected[0]
    assert len(found) > 70


def test_a_long_conversation_is_written() -> None:
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " * 840} for i in range(300)]
    text = rendered(QWEN, messages=turns, tools=None, add_generation_prompt=True)
    assert len(text) > sum(len(turn["content"]) for turn in turns) > 900_000
