"""Training, teachers, embedding on a simulated GPU: devices never mix, and steps wait for nothing.

Within a step, the CPU should queue work and never wait for the GPU; where it does, the wait is listed
here by name, with its reason. `tests/gpu` repeats this on a real one.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch.nn import functional

import embed
import train
from guie.base.devices import make_accelerator
from guie.config.losses import LossConfig
from guie.data.manifest import load_manifest
from guie.evaluation.opened import load_embedding_model, prompt_weights
from guie.evaluation.text import TextEncoder
from guie.losses.build import build_loss
from guie.losses.metric_learning import MetricLearningLoss
from guie.models import open_model
from guie.rows.embedding import OnDevices, embed_files
from runs_of_every_task import ADAPTED, MODELS, RUNS, Material, material_of, within_steps, written
from simulated_gpu import CUDA, OnGPU, SimulatedGPU, Wait, simulated_gpu
from tiny_runs import logged_losses, tiny_run


@pytest.fixture
def gpu() -> Iterator[SimulatedGPU]:
    with simulated_gpu() as gpu:
        yield gpu


# ---------------------------------------------------------------- the simulated GPU itself


def test_it_is_taken_for_a_gpu(gpu: SimulatedGPU) -> None:
    assert make_accelerator().device.type == "cuda"
    made = [torch.zeros(2, device="cuda"), torch.ones(2).to("cuda"), torch.tensor(1, device=CUDA)]
    made += [made[0] + 1, made[0][0], torch.ones(2).to(made[0]), made[0].new_tensor([1])]
    assert all(isinstance(one, OnGPU) and one.device == CUDA and one.is_cuda for one in made)
    assert made[0].cpu().device.type == "cpu" and not isinstance(made[0].cpu(), OnGPU)
    layer = torch.nn.Linear(2, 2)
    before = layer.weight
    layer.to("cuda")(made[0]).sum().backward()
    assert layer.weight is before and before.grad.device == CUDA
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        made[0].numpy()


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, cpu: x + cpu,
        lambda x, cpu: cpu.add_(x),
        lambda x, cpu: torch.cat([x, cpu]),
        lambda x, cpu: cpu[x > 0],
        lambda x, cpu: torch.stack([x.sum(), cpu.sum()]),
        lambda x, cpu: functional.linear(x, cpu),
    ],
)
def test_devices_that_mix_fail(gpu: SimulatedGPU, mix: Any) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mix(torch.randn(3, 3, device="cuda"), torch.randn(3, 3))


@pytest.mark.parametrize(
    ("waits", "what"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool((x > 0).any()), "_local_scalar_dense"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "_to_copy from cuda"),
        (lambda x: torch.ones(3).to(x), "_to_copy from cpu"),
        (lambda x: x.copy_(torch.ones(3, 3)), "copy_ from cpu"),
        (lambda x: x[x > 0], "index by a mask"),
        (lambda x: x[[0, 2]], "index by indices on the CPU"),
        (lambda x: x.__setitem__((x[0].long() * 0,) * 2, 1.0), "index_put_ of a number"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
    ],
)
def test_waits_are_counted_and_refused(gpu: SimulatedGPU, waits: Any, what: str) -> None:
    x = torch.randn(3, 3, device="cuda")
    before = len(gpu.waits)
    waits(x)
    (wait,) = gpu.waits[before:]
    assert wait.startswith(f"test_on_a_simulated_gpu.py <lambda>: {what}")
    gpu.known = ()
    with pytest.raises(Wait, match="waits for the GPU"):
        waits(x)
    gpu.known = {wait}
    waits(x)


def test_what_waits_for_nothing_passes(gpu: SimulatedGPU) -> None:
    x = torch.randn(3, 3, device="cuda")
    gpu.known = ()
    x[x > 1] = 0.0
    x[:, 1:].masked_fill(x[:, 1:] > 0, torch.tensor(2.0)).relu().softmax(1)
    torch.ones(3, 3).pin_memory().to("cuda", non_blocking=True)
    x.to("cpu", non_blocking=True)
    assert x.to("cuda") is x and x.to(torch.float32) is x


# ---------------------------------------------------------------- losses

# pytorch-metric-learning picks pairs by their values. It is not ours to mend.
LIBRARY = "losses/metric_learning.py of_batch"
CUSTOM = Path(__file__).parents[1] / "configs" / "custom"
LOSSES = [
    {"name": "softmax"},
    {"name": "arcface", "centers": 2, "classifier": "separate"},
    {"name": "arcface", "margin_rad": {"min": 0.1, "max": 0.5}},
    {"name": "cosface"},
    {"name": "curricularface"},
    {"name": "curricularface", "running_mean": "class"},
    {"name": "custom_rule", "source": f"{CUSTOM}/adaface.py:AdaFace"},
    {"name": "custom_rule", "source": f"{CUSTOM}/magface.py:MagFace"},
    {"name": "supcon", "memory": 24},
    {"name": "batch_all"},
    {"name": "hyperbolic"},
    {"name": "triplet"},
    {"name": "triplet", "miner": "batch_hard"},
    {"name": "margin", "learn_boundary": True},
    {"name": "multi_similarity"},
    {"name": "proxy_anchor"},
    {"name": "proxy_nca"},
    {"name": "soft_triple"},
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: "-".join(map(str, loss.values())))
def test_no_loss_mixes_devices_or_waits(gpu: SimulatedGPU, loss: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = TypeAdapter(LossConfig).validate_python(loss)
    criterion = build_loss(config, 8, [4, 4, 2, 6], ["a", "a", "b", "b"]).to("cuda")
    raw_BD = torch.randn(12, 8)
    emb_BD = functional.normalize(raw_BD, dim=1).to("cuda").requires_grad_()
    raw_BD = raw_BD.to("cuda")
    label_B = torch.tensor([0, 1, 2, 3] * 3)  # of a batch, on the CPU
    criterion(emb_BD, label_B, raw_BD)  # what is made at first use
    before = len(gpu.waits)
    value = criterion(emb_BD, label_B, raw_BD)[0]
    waited = places(gpu.waits[before:])
    value.backward()
    assert emb_BD.grad.device == CUDA
    assert waited == ({LIBRARY} if isinstance(criterion, MetricLearningLoss) else set())


# ---------------------------------------------------------------- training


@pytest.fixture(scope="module")
def material(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material_of(toy_manifest, tmp_path_factory.mktemp("material"))


# Places that wait at every step
KNOWN = {"triplet with memory": {LIBRARY, "training/step.py gradients"}}  # and its gradients


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_training_is_the_cpus_and_its_steps_wait_for_nothing(
    name: str, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--config", str(written(RUNS[name], material, tmp_path))]
    plain = train.main(words)
    with simulated_gpu() as gpu:
        starts, seen = [], []
        within_steps(
            monkeypatch,
            begin=lambda: starts.append(len(gpu.waits)),
            end=lambda: seen.extend(gpu.waits[starts[-1] :]),
        )
        simulated = train.main([*words, "--set", "name=gpu"])
    assert places(seen) == KNOWN.get(name, set()), seen
    assert logged_losses(simulated) == pytest.approx(logged_losses(plain), rel=1e-3)


def places(waits: list[str]) -> set[str]:
    return {wait.partition(":")[0] for wait in waits}


# ---------------------------------------------------------------- embedding and evaluation


# Which passes are made is decided by the images of a batch.
KNOWN_IN_MODELS = {"views by shape": {"models/ensemble.py _add"}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_embedding_is_the_cpus_and_waits_once_a_block(
    kind: str, material: Material, tmp_path: Path
) -> None:
    """Beside what moves the weights, which does not grow with the number of batches."""
    manifest = load_manifest(material.mix, material.root)
    files = [manifest.file(path) for path in manifest.split("val")["image_path"]]
    assert 16 < len(files)
    job = partial(embed_files, files=files, workers=0)
    model = MODELS[kind](tmp_path / "plain")
    plain_ND = job(make_accelerator(), model.embedder, model.preprocess)
    waits: list[Counter[str]] = []
    with simulated_gpu() as gpu:
        model = MODELS[kind](tmp_path / "plain")
        made_by = (make_accelerator(), model.embedder, model.preprocess)
        job(*made_by)  # moves the weights
        for batch_size in (4, 8):
            before = len(gpu.waits)
            found_ND = job(*made_by, batch_size=batch_size)
            np.testing.assert_allclose(found_ND, plain_ND, rtol=1e-4, atol=1e-5)
            waits.append(Counter(wait.partition(":")[0] for wait in gpu.waits[before:]))
    for place in KNOWN_IN_MODELS.get(kind, set()):
        assert waits[0].pop(place) > waits[1].pop(place)
    for count, batch_size in zip(waits, (4, 8), strict=True):
        blocks = OnDevices(make_accelerator(), model.embedder, [], batch_size).starts(len(files), 1)
        count["rows/embedding.py __call__"] -= len(blocks)
    assert waits[0] == waits[1]


@pytest.mark.slow
def test_weights_of_prompts_and_texts_are_the_cpus(material: Material, tmp_path: Path) -> None:
    manifest = load_manifest(material.mix, material.root)
    folder = tiny_run(tmp_path / "prompts", **ADAPTED)
    clip = f"open_clip:guie-tiny:{material.weights}"

    def made() -> tuple[np.ndarray, np.ndarray]:
        table = prompt_weights(open_model(folder), manifest, "val", workers=0)
        opened = load_embedding_model(clip, make_accelerator(), tmp_path, 32)
        return table.to_numpy(), TextEncoder(opened.model).embed(["a car", "a toy"])

    plain = made()
    with simulated_gpu():
        simulated = made()
    for ours, theirs in zip(simulated, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_embed_and_its_cache_are_the_cpus(material: Material, tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    words = ["--model", str(run), "--manifest", str(material.mix), "--split", "val"]
    words += ["--root", str(material.root), "--workers", "0", "--out"]
    plain = np.load(embed.main([*words, str(tmp_path / "cpu.npz")]))["embedding"]
    with simulated_gpu():
        simulated = np.load(embed.main([*words, str(tmp_path / "gpu.npz")]))["embedding"]
    np.testing.assert_allclose(simulated, plain, rtol=1e-5, atol=1e-6)
