"""Case L06: two processes with 1 and 3 valid tokens. The step divides by the targets of *both*, and gradients add."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import handgrad as hg
from handgrad.core import Accumulate

SHAPE = hg.GPT2Config(vocabulary=11, context=5, n_layers=1, n_heads=2, d_model=6)
TOKENS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
TARGETS = torch.tensor([[-1, -1, -1, -1, 7], [7, 8, -1, 10, -1]])


def one_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = hg.build(SHAPE, seed=0, dtype=torch.float64)
    mine = slice(rank, rank + 1)
    n = (TARGETS[mine] >= 0).sum()
    dist.all_reduce(n)
    loss = model.loss(TOKENS[mine], TARGETS[mine], n_valid=int(n))
    g = model.params.layout.zeros(torch.float64)
    model.backward(Accumulate(g.tree))
    dist.all_reduce(loss)
    dist.all_reduce(g.flat)
    torch.save({"loss": loss, "flat": g.flat}, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or sys.platform != "linux", reason="needs torch.distributed with gloo")
def test_two_ranks_give_the_gradient_of_one_process(tmp_path: Path) -> None:
    mp.spawn(one_rank, (str(tmp_path),), nprocs=2)
    model = hg.build(SHAPE, seed=0, dtype=torch.float64)
    loss, g = model.loss(TOKENS, TARGETS), model.backward()
    for rank in range(2):
        found = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert abs(float(found["loss"] - loss)) <= 1e-12 * float(loss)
        assert (found["flat"] - g.flat).norm() <= 1e-12 * g.flat.norm()
    assert g.flat.norm() > 0
