"""Turns of talk as the ids that a chat model was trained on: its Jinja template, rendered in a process of its own.

A template comes with a model and is not trusted: it reaches nothing but the messages, cannot change them, and is ended
where it takes much time or memory (`template_worker.py`). What people typed never becomes a control token, whatever it
looks like; only what the template itself writes does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from handgrad.core.errors import DataError, cut
from handgrad.data.checks import OnUnknown
from handgrad.data.control import control_names, control_of

WORKER = Path(__file__).with_name("template_worker.py")
MOST_SECONDS = 8  # by the clock
PLAIN = ("User:", "Assistant:")  # for models that were not trained to talk
NAMES = {"user": PLAIN[0], "assistant": PLAIN[1], "system": "System:"}
BLAME = {"ended": "was ended", "refused": "refuses these messages", "failed": "fails"}

Message = dict[str, str]


def rendered(template: str, **values: Any) -> str:
    """The text of a template, from values as JSON has them.

    Raises DataError where the template is at fault, or refuses the messages.

    >>> rendered("{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}",
    ...          messages=[{"role": "user", "content": " hi "}])
    '<user>hi'
    """
    path = [str(entry) for entry in sys.path if entry]
    request = json.dumps({"path": path, "template": template, "values": values}).encode()
    command = [sys.executable, "-I", str(WORKER)]
    answer: dict[str, str] = {}
    try:
        done = subprocess.run(
            command, input=request, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=MOST_SECONDS, check=False
        )
        answer = json.loads(done.stdout) if not done.returncode else {"ended": "it takes too much time or memory"}
    except subprocess.TimeoutExpired:
        answer = {"ended": f"it takes more than {MOST_SECONDS} seconds"}
    except OSError as error:
        why = f"needs a Python of its own, and {sys.executable or 'none'} cannot be started: {error.strerror}"
        raise DataError(f"the model's chat template {why}.") from None
    if "text" in answer:
        return answer["text"]
    kind, why = next(iter(answer.items()))
    raise DataError(f"the model's chat template {BLAME[kind]}: {cut(why.rstrip('.'), 300)}.")


def talk_ids(tokenizer: Any, messages: Sequence[Message], unknown: OnUnknown = "abort") -> list[int]:
    """The ids of all turns and of the beginning of the next answer. Messages: {"role": …, "content": …}.

    Raises DataError where the template, or the tokenizer, refuses them.
    """
    control, names = control_of(tokenizer), control_names(tokenizer)
    if not control.template:
        text = "".join(f"{NAMES[m['role']]} {m['content']}\n" for m in messages) + PLAIN[1]
        return [*control.begin, *(int(i) for i in tokenizer.encode(text, unknown))]
    mark = next(c for c in map(chr, range(0xE000, 0xF8FF)) if not any(c in m["content"] for m in messages))
    marked = [{**m, "content": harmless(m["content"], names, mark)} for m in messages]
    by_id = {i: name for name, i in names.items()}
    text = rendered(
        control.template,
        messages=marked,
        add_generation_prompt=True,
        bos_token=by_id.get(control.begin[0], "") if control.begin else "",
        eos_token=by_id.get(control.end[0], "") if control.end else "",
        tools=None,
    )
    ids = list(encoded_talk(tokenizer, names, text, mark, unknown))
    return ids if tuple(ids[: len(control.begin)]) == control.begin else [*control.begin, *ids]


def harmless(content: str, names: Iterable[str], mark: str) -> str:
    """A message whose names of control tokens are broken by a mark, which is taken out again before encoding."""
    for name in names:
        content = content.replace(name, name[:1] + mark + name[1:])
    return content


def encoded_talk(tokenizer: Any, names: Any, text: str, mark: str, unknown: OnUnknown) -> Iterable[int]:
    return map(int, tokenizer.encode(text, unknown, **({"control": True, "mark": mark} if names else {})))
