"""What `handgrad chat` does once its options are known."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import torch

from handgrad.cli.output import Output
from handgrad.cli.waiting import waiting
from handgrad.cli.writing import DTYPES, WORDLESS, Growing, Request, Written, known_ends, with_flags
from handgrad.core.errors import ConfigError, DataError, HandgradError
from handgrad.data.chat_template import PLAIN, Message, talk_ids
from handgrad.data.control import control_of
from handgrad.generate.session import Session
from handgrad.models.load import load
from handgrad.models.model import Model

HELP = "/reset forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"


@dataclass
class Chat:
    """A conversation: what was said, and what the model has read of it."""

    model: Model
    request: Request
    output: Output
    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.model.tokenizer is None:
            raise ConfigError(WORDLESS)
        self.session, self.generator = Session(self.model), torch.Generator().manual_seed(self.request.seed)
        if not control_of(self.model.tokenizer).template:
            self.output.note(
                f"this model has no chat template; turns are written plainly, as {PLAIN[0]} … and {PLAIN[1]} …"
            )
            self.request = replace(self.request, stops=(*self.request.stops, f"\n{PLAIN[0]}"))
        self.ids_of([{"role": "user", "content": "a"}])  # a template that is at fault is told at once

    def ids_of(self, turns: list[Message]) -> list[int]:
        told = [] if self.system is None else [{"role": "system", "content": self.system}]
        try:
            return talk_ids(self.model.tokenizer, [*told, *turns], self.request.unknown)
        except DataError as error:
            raise DataError(with_flags(str(error))) from None

    def fitted(self) -> list[int]:
        """The ids of as many of the last turns as leave room for an answer. DataError where not even one does."""
        context = self.model.config.context
        room = max(1, min(self.request.max_new_tokens, context // 4))
        n_turns = len(self.turns)
        while len(ids := self.ids_of(self.turns)) + room > context + 1:
            if len(self.turns) < 3:
                raise DataError(
                    f"this turn has {len(ids)} tokens with all that belongs to it, and the model's context is "
                    f"{context}, {room} of them for the answer; say it shorter"
                )
            self.turns = self.turns[2:]  # a question and its answer
        if forgotten := (n_turns - len(self.turns)) // 2:
            first = "the first turn does" if forgotten == 1 else f"the first {forgotten} turns do"
            self.output.note(f"({first} not fit the context of {context} tokens any more: forgotten)")
        return ids

    def say(self, text: str) -> None:
        """One turn: the answer is shown as it comes."""
        before = list(self.turns)
        self.turns.append({"role": "user", "content": text})
        try:
            ids = self.fitted()
        except HandgradError:
            self.turns = before
            raise
        written = Written(ids, [])
        growing, shown, why = Growing(self.model, written, self.request), Shown(self.output), "length"
        n_read, most = self.session.n_read, self.request.max_new_tokens
        try:
            for i in self.session.answer(ids, most, self.request.sampling, self.generator, known_ends(self.model)):
                shown.add(growing.push(i))
                if written.stopped:
                    why = "stop"
                    break
        except KeyboardInterrupt:
            why = "interrupted"
        shown.add(growing.flush())
        shown.end()
        if written.stopped:
            why = "stop"
        self.turns.append({"role": "assistant", "content": written.text.strip()})
        if why == "interrupted":
            self.output.note("(stopped)")
        elif why == "length" and most:
            limit = f"after {most} tokens (--max-new-tokens)" if written.n_drawn >= most else "where the context ends"
            self.output.note(f"(cut {limit})")
        self.output.record(
            {
                "user": text,
                "text": written.text.strip(),
                "prompt_ids": ids,
                "ids": written.ids,
                "ended": why,
                "n_read": self.session.n_read - n_read,
            }
        )

    def reset(self) -> None:
        self.turns.clear()
        self.output.note("(forgotten)")


@dataclass
class Shown:
    """An answer on the screen, without the white space before it."""

    output: Output
    begun: bool = False

    def add(self, piece: str) -> None:
        piece = piece if self.begun else piece.lstrip()
        if piece and not self.output.json:
            self.output.text(piece, end="")
        self.begun = self.begun or bool(piece)

    def end(self) -> None:
        if not self.output.json:
            self.output.text()


def talk(request: Request, path: str, system: str | None, output: Output) -> None:
    """Turn after turn, until the input ends."""
    with waiting(f"loading {path}", output.live):
        model = load(path)
        if (dtype := DTYPES[request.dtype]) is not None:
            model = model.shadowed(dtype)
    chat = Chat(model, request, output, system)
    if interactive():
        output.note(HELP)
    prompt = "> " if interactive() and not output.json else ""
    while (line := next_line(prompt)) is not None:
        text = line.strip()
        if text == "/quit":
            return
        if text == "/reset":
            chat.reset()
        elif text.startswith("/") and " " not in text:
            output.note(f"there is no command {text}; {HELP}")
        elif text:
            answered(chat, text, output)


def answered(chat: Chat, text: str, output: Output) -> None:
    """One turn; what cannot be said is told, and the conversation goes on. Without a person, it ends it."""
    try:
        chat.say(text)
    except DataError as error:
        if not interactive():
            raise
        output.note(str(error))


def interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def next_line(prompt: str) -> str | None:
    """The next line that was typed or piped; None at the end."""
    while True:
        try:
            return input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise DataError(f"the input is not UTF-8 text: {error.reason} at byte {error.start}") from None
        except KeyboardInterrupt:
            if not interactive():
                raise
            print(f"\n{HELP}", file=sys.stderr)
