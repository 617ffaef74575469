"""Class weights under FSDP in two processes: split for good, or gathered by each at every step.

python tests/bench/split_classes.py [--classes 1000000] [--dim 64] [--batch 64] [--steps 3]

A step is ArcFace's loss, its gradients and AdamW. Shown are seconds of the slower process, and its peak
memory above what it held before the loss was made. Gathered is what FSDP does with any other weights.
"""

from __future__ import annotations

import tempfile
import time

import torch
from common import arguments, forget_peak, peak_gb, show
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace

PROCESSES = 2


def step_costs(
    rank: int, folder: str, split: bool, sizes: dict[str, int], found: torch.Tensor
) -> None:
    """Write the seconds of a step, and the peak memory in GB, into the row of this process."""
    torch.set_num_threads(1)
    address = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=PROCESSES)
    mesh, held = init_device_mesh("cpu", (PROCESSES,)), peak_gb()
    loss = MarginSoftmax(sizes["classes"], sizes["dim"], ArcFace(0.3), scale=30.0)
    if split:
        assert loss.split(mesh)
    else:
        fully_shard(loss, mesh=mesh)
    optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-3)
    forget_peak()  # the whole weights, before they were split
    torch.manual_seed(rank)
    emb_BD = nn.Parameter(functional.normalize(torch.randn(sizes["batch"], sizes["dim"]), dim=1))
    seconds = []
    for _ in range(sizes["steps"]):
        distributed.barrier()
        began = time.perf_counter()
        value, _ = loss(emb_BD, torch.randint(sizes["classes"], (sizes["batch"],)))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    found[rank] = torch.tensor([min(seconds), peak_gb() - held])
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    sizes = vars(arguments(__doc__, classes=1_000_000, dim=64, batch=64, steps=3))
    rows = []
    for name, split in (("gathered", False), ("split", True)):
        found = torch.zeros(PROCESSES, 2).share_memory_()
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.start_processes(
                step_costs, (folder, split, sizes, found), PROCESSES, start_method="spawn"
            )
        rows.append([name, *found.amax(0).tolist()])
    show(["class weights", "seconds a step", "peak, GB"], rows)


if __name__ == "__main__":
    main()
