"""`hg.as_module` in other people's networks and loops: one block of a transformers GPT-2, its Trainer, Lightning."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_hf import scattered
from test_model import SMALL, batch, randomised, relative

import handgrad as hg

transformers = pytest.importorskip("transformers")


class Ours(torch.nn.Module):
    """What transformers' loop over its blocks calls: everything but the stream is left to our layer."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden_states, *args, **kwargs):
        return self.block(hidden_states)


class WithLoss(torch.nn.Module):
    """A loop that wants the loss from the model: (ids, labels, shifted here) -> loss, logits."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input_ids, labels):
        logits = self.module(input_ids)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def losses(network: torch.nn.Module, steps: int) -> list[float]:
    network.train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.1)
    found = []
    for step in range(steps):
        tokens = batch(step, rows=4, length=19)
        loss = network(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("replaced", [[1], [0, 1]])
def test_a_block_of_gpt2_replaced_has_the_same_loss_curve(tmp_path: Path, replaced: list[int]) -> None:
    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=11, n_positions=29, n_embd=8, n_layer=2, n_head=2, **rates)
    theirs = scattered(transformers.GPT2LMHeadModel(config).double())
    theirs.save_pretrained(tmp_path)
    module = hg.as_module(hg.load(tmp_path, dtype=torch.float64))
    mixed = copy.deepcopy(theirs)
    for i in replaced:
        mixed.transformer.h[i] = Ours(module.get_submodule(f"blocks.{i}"))
    before = module.get_parameter("blocks.1.mlp.up.w").detach().clone()
    plain, ours = losses(theirs, 12), losses(mixed, 12)
    assert plain[-1] < plain[0] - 0.3
    assert max(abs(a - b) for a, b in zip(plain, ours, strict=True)) <= 1e-10
    after = module.get_parameter("blocks.1.mlp.up.w")
    assert relative(after, theirs.transformer.h[1].mlp.c_fc.weight) <= 1e-9
    assert relative(after, before) > 1e-2


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_trainer_trains_our_module(tmp_path: Path, tied: bool) -> None:
    pytest.importorskip("accelerate")
    model = randomised(replace(SMALL, tied=tied), dtype=torch.float32)
    rows = [{"input_ids": row, "labels": row} for row in batch(3, rows=32)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=8,
        num_train_epochs=5,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no"
        if tied
        else "epoch",  # safetensors, as the Trainer calls it, refuses any module's tied tensors
        save_total_limit=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    before = float(model.loss(batch(3, rows=32)))
    trainer = transformers.Trainer(WithLoss(hg.as_module(model)), arguments, train_dataset=rows)
    trainer.train()
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(logged) == 20
    after = float(model.loss(batch(3, rows=32)))
    assert after < before - 0.3  # the model itself has been trained: its numbers are the module's
    if not tied:
        saved = load_file(tmp_path / "checkpoint-20" / "model.safetensors")
        assert {name: torch.equal(saved[f"module.{name}"], w) for name, w in model.params.items()} == dict.fromkeys(
            model.params, True
        )


@pytest.mark.filterwarnings("ignore::Warning")  # Lightning's own
def test_lightning_trains_our_module() -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Lit(lightning.LightningModule):
        def __init__(self, module):
            super().__init__()
            self.module = WithLoss(module)

        def training_step(self, tokens, index):
            return self.module(tokens, tokens)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    model, tokens = randomised(SMALL, dtype=torch.float32), batch(3, rows=32)
    before = float(model.loss(tokens))
    trainer = lightning.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Lit(hg.as_module(model)), torch.utils.data.DataLoader(tokens, batch_size=8))
    assert float(model.loss(tokens)) < before - 0.3
