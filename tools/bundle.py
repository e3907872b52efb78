"""Makes a model of `src/handgrad/bundled` from a run: rounds it to bfloat16, and measures what that costs.

handgrad train --config src/handgrad/bundled/docs-1m/recipe.toml --out runs/docs-1m
python tools/bundle.py runs/docs-1m docs-1m

The folder gets the rounded checkpoint, a piece of text that the model was not trained on, and `figures.json`. The run's
optimiser stays where it is: a bundled model is for reading and writing, not for going on with its training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from handgrad.bundled import NAMES
from handgrad.data.corpus import open_corpus
from handgrad.data.sources import embedded_text
from handgrad.generate.score import evaluate
from handgrad.models.load import checkpoint_folder, load
from handgrad.models.store import PARAMS, STATE, STORED_DTYPE, TOKENIZER, metadata_of, read_state
from handgrad.train.config import read_toml

BUNDLED = Path(__file__).parents[1] / "src" / "handgrad" / "bundled"
HELD_OUT, FIGURES = "held_out.txt", "figures.json"
HELD_OUT_BYTES, STRIDE = 4000, 64


def main(arguments: list[str]) -> int:
    run, name = arguments
    if name not in NAMES:
        print(f"{name} is not among the names of handgrad.bundled: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    source, target = checkpoint_folder(run), BUNDLED / name
    target.mkdir(exist_ok=True)
    model, state = load(source), read_state(source)
    state[STORED_DTYPE] = "bfloat16"
    rounded = {n: model.params[n].to(torch.bfloat16).contiguous() for n in model.params.layout.places}
    save_file(rounded, target / PARAMS, metadata_of(state))
    (target / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="ascii")
    (target / TOKENIZER).write_bytes((source / TOKENIZER).read_bytes())
    (target / HELD_OUT).write_text(held_out(), encoding="utf-8")

    validation = open_corpus(Path(run) / "data").split()[1]
    held = model.tokenizer.encode(held_out())
    figures = {"parameters": model.params.layout.count, "bytes": (target / PARAMS).stat().st_size}
    for which, one in (("as_trained", model), ("rounded", load(target))):
        figures[which] = {
            "validation_nats_a_token": evaluate(one, validation).nats_a_token,
            "held_out_nats_a_token": evaluate(one, held, stride=STRIDE).nats_a_token,
        }
    figures |= {"held_out_stride": STRIDE, "validation_bytes": len(validation), "steps": state["step"]}
    figures |= {"seconds": round(state["elapsed_s"]), "versions": dict(read_toml(Path(run) / "config.toml").versions)}
    (target / FIGURES).write_text(json.dumps(figures, indent=2) + "\n", encoding="ascii")
    print(json.dumps(figures, indent=2))
    return 0


def held_out() -> str:
    """The last lines of the embedded text, which lie in the part that a run only validates on."""
    tail = embedded_text().encode()[-HELD_OUT_BYTES:]
    return tail[tail.index(b"\n") + 1 :].decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
