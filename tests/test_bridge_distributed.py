"""`hg.as_module` under DDP and FSDP2 (`fully_shard`): two processes with gloo take the step of one process."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import handgrad as hg

SHAPE = hg.GPT2Config(vocabulary=11, context=5, n_layers=2, n_heads=2, d_model=6)
STEPS = 3

pytestmark = pytest.mark.skipif(
    not dist.is_available() or sys.platform != "linux", reason="needs torch.distributed with gloo"
)


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(step))


def steps(network: torch.nn.Module, mine: slice) -> list[torch.Tensor]:
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        tokens = batch(step)[mine]
        logits = network(tokens)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
    return losses


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mine, found = slice(2 * rank, 2 * rank + 2), {}
    for how in (ddp, fsdp2):
        losses, state = how(hg.as_module(hg.build(SHAPE, seed=0, dtype=torch.float64)), mine)
        losses = torch.stack(losses)
        dist.all_reduce(losses)
        found |= {f"{how.__name__}/losses": losses / 2} | {f"{how.__name__}/{name}": x for name, x in state.items()}
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def ddp(module: torch.nn.Module, mine: slice):
    return steps(torch.nn.parallel.DistributedDataParallel(module), mine), module.state_dict()


def fsdp2(module: torch.nn.Module, mine: slice):
    mesh = init_device_mesh("cpu", (2,))
    for block in module.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    w = module.get_parameter("blocks.0.mlp.up.w")
    assert w.to_local().numel() == w.numel() // 2
    losses = steps(module, mine)
    return losses, {name: x.full_tensor() for name, x in module.state_dict().items()}


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    mp.spawn(one_rank, (str(tmp_path),), nprocs=2)
    module = hg.as_module(hg.build(SHAPE, seed=0, dtype=torch.float64))
    first = {name: x.clone() for name, x in module.state_dict().items()}
    losses = torch.stack(steps(module, slice(None)))
    for rank in range(2):
        found = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert len(found) == 2 * (1 + len(first))
        for how in ("ddp", "fsdp2"):
            assert (found[f"{how}/losses"] - losses).norm() <= 1e-12 * losses.norm()
            for name, x in module.state_dict().items():
                # the gradient of key.b is 0, and what AdamW makes of its rounding is noise far below one step of 1e-2
                allowed = 1e-9 if name.endswith("key.b") else 1e-10 * x.norm()
                assert (found[f"{how}/{name}"] - x).norm() <= allowed, f"{how} {name}"
                assert (x - first[name]).norm() > 0
