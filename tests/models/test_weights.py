"""Pretrained weights: one file, found by name, checked by hash, loaded by path."""

import hashlib
from pathlib import Path

import huggingface_hub
import open_clip
import pytest
import timm
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file
from torch import nn

from guie.base.errors import UserError
from guie.config.model import BackboneConfig, TaggedFile
from guie.models.backbones import build_backbone
from guie.models.backbones.open_clip import create_clip
from guie.models.pretrained import find_weights, weights_record

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
# Its tag is of the authors' .npz too, which timm reads by another way than the hub's file.
VIT = {"library": "timm", "name": "vit_tiny_patch16_224", "kwargs": SMALL}
VIT_TAG = "augreg_in21k_ft_in1k"
VIT_REPOSITORY = f"timm/vit_tiny_patch16_224.{VIT_TAG}"
CLIP = {"library": "open_clip", "name": "guie-tiny"}
COMMIT = "0123abcd"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch) -> Path:
    """A hub in a folder, as the cache keeps it: <repository>/snapshots/<commit>/<file>."""

    def download(
        repository: str, name: str, revision: str | None = None, local_files_only: bool = False
    ) -> str:
        file = tmp_path / "hub" / repository / "snapshots" / (revision or COMMIT) / name
        if not file.is_file():
            raise LocalEntryNotFoundError(f"{repository} has no {name}\nand a second line")
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr("guie.models.pretrained._no_answer", lambda url: "")
    known = {"hf_hub": "org/tiny/", "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "guie-tiny", {"drawn": known})
    return tmp_path / "hub"


def put(hub: Path, repository: str, name: str, module: nn.Module, revision: str = COMMIT) -> str:
    """Give the hub a file of a module's weights; its sha256."""
    file = hub / repository / "snapshots" / revision / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".safetensors":
        save_file({k: v.contiguous() for k, v in module.state_dict().items()}, file)
    else:
        torch.save(module.state_dict(), file)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def new_vit(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model(VIT["name"], **SMALL)


@pytest.mark.parametrize(
    ("library", "name"),
    [
        *(("timm", "model.safetensors"), ("timm", "pytorch_model.bin")),
        ("open_clip", "open_clip_model.safetensors"),
        ("open_clip", "open_clip_pytorch_model.bin"),
    ],
)
def test_a_tag_is_the_hubs_file_with_its_statistics(library: str, name: str, hub: Path) -> None:
    torch.manual_seed(1)
    timms = library == "timm"
    known = {**VIT, "pretrained": VIT_TAG} if timms else {**CLIP, "pretrained": "drawn"}
    repository = VIT_REPOSITORY if timms else "org/tiny"
    whole = new_vit(1) if timms else create_clip(BackboneConfig(**CLIP))
    old = put(hub, repository, name, new_vit(2) if timms else whole, revision="v0")
    sha256 = put(hub, repository, name, whole)
    if name.endswith(".safetensors"):  # is taken before a pickle
        put(hub, repository, "pytorch_model.bin", nn.Linear(2, 2))
    config = BackboneConfig(**known, sha256=sha256[:8].upper())
    built = build_backbone(config)
    expected = (whole if timms else whole.visual).state_dict()
    assert all(torch.equal(expected[key], value) for key, value in built.tower.state_dict().items())
    assert timms or (built.mean, built.std) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    source = f"https://huggingface.co/{repository}/tree/"
    assert weights_record(config) == {"file": name, "sha256": sha256, "from": source + COMMIT}
    earlier = BackboneConfig(**known, revision="v0", sha256=old)
    assert weights_record(earlier)["from"] == source + "v0"
    unused = BackboneConfig(**known, sha256="0" * 8)
    build_backbone(unused, 32, weights=False)  # a checkpoint will follow
    assert weights_record(BackboneConfig(**(VIT if timms else CLIP))) is None


def test_a_file_is_checked_before_it_is_loaded(tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "w.safetensors"
    save_file(new_vit(1).state_dict(), file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    config = BackboneConfig(**VIT, pretrained=str(file), sha256=sha256)
    assert weights_record(config) == {"file": file.name, "sha256": sha256, "from": str(file)}
    backbone = build_backbone(config)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"mean {backbone.mean}, std {backbone.std}" in line
    save_file(new_vit(2).state_dict(), file)
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: pytest.fail("loaded"))
    message = r"sha256: .*safetensors has [0-9a-f]{64}, not .*; the file is damaged, or not the one"
    with pytest.raises(UserError, match=message):
        build_backbone(config)


def test_a_tag_that_is_not_on_the_hub_comes_by_its_url(tmp_path: Path, monkeypatch) -> None:
    asked = []

    def download(url: str, file: Path) -> None:
        asked.append(url)
        file.write_bytes(b"weights")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("guie.models.pretrained.stream", download)
    config = {"library": "timm", "name": "legacy_seresnet18", "pretrained": "in1k"}
    records = [weights_record(BackboneConfig(**config)) for _ in range(2)]
    sha256 = hashlib.sha256(b"weights").hexdigest()
    name = "seresnet18-4bb0ce65.pth"
    assert records == [{"file": name, "sha256": sha256, "from": asked[0]}] * 2
    assert len(asked) == 1 and asked[0].endswith("/" + name), "downloaded once"
    with pytest.raises(UserError, match="revision: 'in1k' is not on the hub"):
        find_weights(BackboneConfig(**config, revision="v1"))


UNFIT = r"weights do not fit \(Missing key.*\); .* start_from to a run$"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**VIT, "pretrained": VIT_TAG}, f"cannot download {VIT_REPOSITORY}: .* has no"),
        ({**VIT, "pretrained": "no_tag"}, f"no weights 'no_tag' for .*; available: .*{VIT_TAG}"),
        ({**CLIP, "pretrained": "no_tag"}, "no weights 'no_tag' for 'guie-tiny'; available: drawn"),
        ({**CLIP, "pretrained": "x/w.npz"}, "x/w.npz: no such weights file"),
        ({**CLIP, "pretrained": "./"}, r"pretrained: \. is a folder; .* start_from to a run"),
        ({**CLIP, "name": "gui-tiny", "pretrained": "x"}, "no model 'gui-tiny'; .* guie-tiny"),
        ({**VIT, "name": "vit_tinyy", "pretrained": "x"}, "timm has no model 'vit_tinyy'"),
        ({**VIT, "kwargs": {"no_such_argument": 1}}, "timm cannot build .*no_such_argument"),
        ({**CLIP, "pretrained": "{hub}/other.safetensors"}, UNFIT),
        ({**VIT, "pretrained": "{hub}/other.safetensors"}, UNFIT),
        ({**VIT, "pretrained": "{hub}/w.pkl"}, "w.pkl: not a weights file .*convert it to .safe"),
    ],
)
def test_weights_that_are_not_there_are_told_in_one_line(config, said, hub: Path) -> None:
    hub.mkdir()
    save_file({"head.weight": torch.zeros(2, 2)}, hub / "other.safetensors")
    (hub / "w.pkl").write_bytes(b"")
    if file := config.get("pretrained"):
        config = {**config, "pretrained": file.replace("{hub}", str(hub))}
    with pytest.raises(UserError, match=said) as caught:
        build_backbone(BackboneConfig(**config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "module.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("library", ["open_clip", "timm"])
def test_prefixes_of_compiled_and_parallel_models_are_removed(
    library: str, prefix: str, tmp_path: Path
) -> None:
    backbone = CLIP if library == "open_clip" else VIT
    whole = create_clip(BackboneConfig(**CLIP)) if library == "open_clip" else new_vit(1)
    state = {prefix + key: value for key, value in whole.state_dict().items()}
    torch.save({"epoch": 1, "state_dict": state}, tmp_path / "w.pt")
    tower = build_backbone(BackboneConfig(**backbone, pretrained=str(tmp_path / "w.pt"))).tower
    expected = (whole.visual if library == "open_clip" else whole).state_dict()
    for name, value in tower.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("library", ["open_clip", "timm"])
def test_a_tag_in_a_file_is_the_tag_without_the_hub(
    library: str, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Weights, mean, std and answers; also in a run that is opened again, and in its record."""
    timms = library == "timm"
    config, tag = (VIT, VIT_TAG) if timms else (CLIP, "drawn")
    name = "model.safetensors" if timms else "open_clip_model.safetensors"
    repository = VIT_REPOSITORY if timms else "org/tiny"
    put(hub, repository, name, new_vit(3) if timms else open_clip.create_model("guie-tiny"))
    by_tag = build_backbone(BackboneConfig(**config, pretrained=tag), 64)
    file = (hub / repository / "snapshots" / COMMIT / name).rename(tmp_path / name)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked"))
    capsys.readouterr()
    with_file = BackboneConfig.model_validate(
        {**config, "pretrained": {"tag": tag, "file": str(file)}}
    )
    by_file = build_backbone(with_file, 64)
    assert capsys.readouterr().err == ""  # nothing is assumed
    assert (by_file.mean, by_file.std) == (by_tag.mean, by_tag.std)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(by_file.eval()(images), by_tag.eval()(images))
    assert weights_record(with_file)["from"] == str(file)
    assert with_file.with_file("x/y.pt").tag == tag
    with pytest.raises(UserError, match="no weights 'other' for"):
        build_backbone(
            with_file.model_copy(update={"pretrained": TaggedFile(tag="other", file=str(file))})
        )
