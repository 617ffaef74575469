"""Two CPU processes share the weights, and train as one process with all of them does."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.commands.config.config_args import load_config_from_file
from test_processes import SRC, environment, stopped_after
from torch import nn
from torch.distributed.tensor import DTensor
from toy_configs import FROZEN, RATES, sets

import train
import two_processes
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.data.dataset import Batch, Classes
from guie.models.embedder import build_embedder
from guie.training import sharding
from guie.training.checkpoint import Checkpoints
from guie.training.run_folder import read_metrics
from guie.training.sharding import (
    Shards,
    refuse_unshardable,
)
from guie.training.stage import set_model
from guie.training.step import gradients
from guie.training.tasks import build_task
from tiny_runs import TINY_CLIP, interrupted_after, tiny_config
from two_processes import SHARDED

ACCELERATE = SRC.parent / "configs/accelerate"


@pytest.fixture(scope="module")
def words(written: Callable) -> list[str]:
    """A frozen stage, then one with all that has a state or looks at all weights; at another size."""
    full = {"epochs": 1.2, "accumulate": 2, "sam_rho": 0.05, "optimizer_state": "carry"}
    full |= {"validate_every": "3 steps", "lr": {**RATES, "classes": 1e-3}}
    return written(
        model={"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"norm": "bn"}},
        train={"batch_size": 16, "size_px": 40, "ema_decay": 0.9, "clip_grad_norm": 1.0},
        stages=[{"epochs": 0.8, "lr": {**FROZEN, "classes": 1e-3}}, full],
    )


@pytest.fixture(scope="module")
def one(words: list[str]) -> Path:
    """The run of a single process."""
    return train.main(words)


# There split class weights have right gradients, and all others twice theirs
averaged_on_cpus = pytest.mark.skipif(
    torch.__version__ < (2, 8), reason="there gloo sums what FSDP asks it to average"
)


@pytest.mark.slow
@averaged_on_cpus
def test_begun_sharded_and_ended_by_one(words: list[str], one: Path) -> None:
    words = [*words, *sets("name=launched")]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    launch += ["--config_file", str(ACCELERATE / "fsdp.yaml"), "--main_process_port", "0"]
    cpus = environment() | {"ACCELERATE_USE_CPU": "true"}
    process = subprocess.Popen([*launch, str(SRC / "train.py"), *words], env=cpus)
    stopped_after(process, one.with_name("launched") / "metrics.jsonl", 6)
    assert_same_run(train.main([*words, "--resume"]), one)


@averaged_on_cpus
@pytest.mark.slow
def test_begun_by_one_and_ended_sharded(words: list[str], one: Path, monkeypatch) -> None:
    words = [*words, *sets("name=sharded_later", "checkpoint_every=5 steps")]
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=7)
        with pytest.raises(KeyboardInterrupt):
            train.main(words)
    two_processes.run("train", [*words, "--resume"], **SHARDED)
    assert_same_run(one.with_name("sharded_later"), one)


def assert_same_run(run: Path, one: Path) -> None:
    """Logs and last checkpoints agree, the latter name by name."""
    logs = [read_metrics(folder / "metrics.jsonl") for folder in (run, one)]
    for line, expected in zip(*logs, strict=True):
        assert line.pop("stage") == expected.pop("stage")
        assert line == pytest.approx(expected, rel=1e-4)
    saved, expected = (Checkpoints(folder, keep=1).load() for folder in (run, one))
    assert saved["optimizer"].pop("param_groups") == expected["optimizer"].pop("param_groups")
    for part in ("task", "optimizer", "ema"):
        torch.testing.assert_close(saved[part], expected[part], rtol=1e-3, atol=1e-3)


def test_the_launchers_files_are_those_tested_here() -> None:
    read = {path.stem: load_config_from_file(str(path)) for path in ACCELERATE.glob("*.yaml")}
    types = {name: file.distributed_type for name, file in read.items()}
    assert types == {"ddp": "MULTI_GPU", "fsdp": "FSDP"}
    settings = read["fsdp"].fsdp_config
    assert settings["fsdp_version"] == int(SHARDED["FSDP_VERSION"])
    assert settings["fsdp_auto_wrap_policy"] == SHARDED["FSDP_AUTO_WRAP_POLICY"]


def _blocks_in_bf16(rank: int, folder: str) -> None:
    two_processes.join(rank, folder, **SHARDED)
    accelerator = make_accelerator(cpu=True, mixed_precision="bf16")
    config = tiny_config(Path(folder) / "run")
    task = build_task(config, Classes(["a/0", "a/1", "b/0"], [4] * 3, ["a", "a", "b"]))
    set_model(task, config, 1, [0, 1, 2])
    task.requires_grad_(True)
    before = {name: value.clone() for name, value in task.state_dict().items()}
    shards = Shards(accelerator, task)
    optimizer = torch.optim.AdamW([{"params": [p]} for p in task.parameters()], lr=0.1)
    model, optimizer = shards.prepare(task, optimizer)
    rows = model.criterion.weight_CD.to_local().shape[0]
    assert rows == 2 - rank  # of three classes
    groups = [group["params"] for group in optimizer.param_groups]
    assert [one for (one,) in groups] == list(model.parameters())
    assert all(p.dtype == torch.float32 and isinstance(p, DTensor) for p in model.parameters())

    sent: dict[str, set[torch.dtype]] = {}

    def note(name: str, module: nn.Module) -> None:
        sent.setdefault(name, set()).update(p.dtype for p in module.parameters())

    for name, module in model.named_modules():
        if not list(module.children()) and list(module.parameters()):
            module.register_forward_pre_hook(lambda module, args, name=name: note(name, module))
    images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(rank))
    batch = Batch(torch.tensor([rank, 2]), torch.arange(2), torch.ones(2, 3), images)
    gradients(accelerator, model, batch, 1)
    of_blocks = {name for name in sent if ".resblocks." in name}
    assert of_blocks and of_blocks != sent.keys()
    for name, types in sent.items():
        assert types == {torch.bfloat16 if name in of_blocks else torch.float32}, name
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())
    grads = {n: p.grad.full_tensor() for n, p in model.named_parameters() if p.grad is not None}
    assert len(grads) > len(of_blocks)
    optimizer.step()
    after = shards.whole(model).state_dict()
    for name, grad in grads.items():
        assert not grad.any() or not torch.equal(before[name], after[name]), name
    two_processes.leave()


@pytest.mark.slow
def test_only_weights_of_blocks_are_sent_in_bf16(tmp_path: Path) -> None:
    two_processes.saved_by(_blocks_in_bf16, tmp_path)


def test_the_first_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(UserError, match="--fsdp_version 2"):
        make_accelerator()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["channels_last=true"], "channels_last: FSDP shards contiguous weights only"),
        (["train.batch_norm=train"], "batch_norm: .* under FSDP would keep different statistics"),
        (["train.clip_grad_value=1"], "clip_grad_value: not supported under FSDP"),
        (["model.backbone.pretrained=w", "retention={weights: 1}"], "weights: needs unsharded"),
    ],
)
def test_what_cannot_be_sharded_is_refused(
    settings: list[str], message: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = load_config(words[1], RunConfig, settings)
    refuse_unshardable(Accelerator(), wanted)  # not sharded
    monkeypatch.setattr("guie.training.sharding.is_sharded", lambda accelerator: True)
    with pytest.raises(UserError, match=message):
        refuse_unshardable(Accelerator(), wanted)
    clip = nn.ParameterDict({"logit_scale": nn.Parameter(torch.ones(()))})
    with pytest.raises(UserError, match="cannot shard scalar parameters: logit_scale"):
        Shards(Accelerator(), clip)


def test_synchronised_statistics_need_gpus(words: list[str]) -> None:
    wanted = load_config(words[1], RunConfig, ["train.batch_norm=synced"])
    cpu = torch.device("cpu")
    refuse_unshardable(SimpleNamespace(num_processes=1, device=cpu, distributed_type=None), wanted)
    with pytest.raises(UserError, match="SyncBatchNorm needs GPUs; set it to train"):
        refuse_unshardable(SimpleNamespace(num_processes=2, device=cpu), wanted)


def test_a_stage_is_sharded_after_its_blocks(tmp_path: Path) -> None:
    backbone = {"library": "timm", "name": "test_convnext", "pretrained": None}
    embedder = build_embedder(tiny_config(tmp_path, backbone=backbone).model)
    names = {id(module): name for name, module in embedder.named_modules()}
    found = [names[id(module)] for module in sharding._blocks(embedder)]
    stage = next(name for name in found if name.endswith("stages.0"))
    assert found.index(f"{stage}.blocks.0") < found.index(stage)
