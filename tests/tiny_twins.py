"""A recipe's twin: the same run in small, so that every stage of it takes a few steps in seconds.

Kept: the kind of backbone and its patches, head, loss, samplers, optimisers, rates, schedules, views,
stages; the depth where blocks have rates of their own. Made smaller: the width of the backbone, the
grid of patches, the batch, and the epochs with all that is counted in them. In fp32, for accelerate
takes one precision a process.
"""

import json
from pathlib import Path
from typing import Any

import open_clip

from guie.config import RunConfig
from guie.config.durations import Duration
from guie.config.loading import to_yaml
from guie.data.manifest import load_manifest, save_manifest
from tiny_runs import tiny_run

BATCH, STEPS = 12, 2  # of every stage
WIDTH, DEPTH = 32, 4
# A timm tower has no name at this width, and open_clip hands timm no arguments.
TIMM_IN_OPEN_CLIP = {"PE-Core-L-14-336": "vit_pe_core_tiny_patch16_384"}


def twin(config: RunConfig, folder: Path, toy: Path) -> Path:
    """Write the config of a recipe's twin. Raises KeyError for a backbone it cannot make small."""
    values = config.model_dump()
    rows = mix_for(config, toy, folder / "mix.csv")
    rows = {name: count for name, count in rows.items() if name not in config.data.leave_out}
    by_block = any(stage.lr.blocks for stage in config.stages)
    by_block |= any(getattr(one, "blocks", "all") != "all" for one in config.model.adapters)
    backbone = small_backbone(values["model"]["backbone"], folder, None if by_block else DEPTH)
    patch_px = patch_size(backbone)
    size_px = values["model"]["image"]["size_px"]
    values |= {"out": str(folder / "runs"), "log_every": "1 step", "precision": "no"}
    values |= {"checkpoint_every": "1 step", "keep_checkpoints": 999}
    values["data"] |= {"manifest": str(folder / "mix.csv"), "root": str(toy.parent), "workers": 0}
    values["model"]["backbone"] = backbone
    values["model"]["image"]["size_px"] = small_size(size_px, patch_px, patch_px)
    for stage in values["stages"]:
        shrink_stage(stage, rows, size_px, patch_px)
    factor = values["stages"][0]["epochs"] / config.stages[0].epochs
    teachers = values["task"]["teachers"] if config.task.name == "distillation" else []
    for number, teacher in enumerate(teachers):
        teacher["model"] = str(tiny_run(folder / f"teacher_{number}"))
    if values["task"].get("metaclasses"):  # the mix has three classes or so
        values["task"]["metaclasses"]["count"] = 2
    if values["task"].get("loss", {}).get("weights") == "identity":
        values["model"]["head"]["dim"] = 2
    margin = values["task"].get("loss", {}).get("margin_rad")
    if isinstance(margin, dict) and "rise_per_epoch" in margin:
        margin["rise_per_epoch"] /= factor
    path = folder / "twin.yaml"
    path.write_text(to_yaml(values))
    return path


def shrink_stage(stage: dict[str, Any], rows: dict[str, int], size_px: int, patch_px: int) -> None:
    """A few steps of a small batch; whatever counts epochs or steps shrinks with them."""
    names = stage["domains"] or rows
    steps_per_epoch = max(1, sum(round(rows[name] / BATCH) or 1 for name in names))
    factor = (STEPS - 0.4) / steps_per_epoch / stage["epochs"]  # rounded up, by the loop
    stage["epochs"] *= factor
    schedule = stage["schedule"]
    for where, key in ((stage, "warmup"), (stage, "warmup_every"), (schedule, "every")):
        if where.get(key):
            where[key] = shorter(where[key], factor)
    if "epochs" in schedule:
        schedule["epochs"] = [epoch * factor for epoch in schedule["epochs"]]
    stage["batch_size"] = BATCH
    if stage["sampler"].get("images_per_class"):  # the toy classes are small
        stage["sampler"] |= {"images_per_class": 2, "rare_classes": "repeat"}
    # Every stage names its size: the twin's grids need not keep the recipe's proportions.
    stage["size_px"] = small_size(
        stage["size_px"] or size_px, patch_px, stage["stride_px"] or patch_px
    )


def shorter(duration: str, factor: float) -> str:
    """So many epochs of the twin, or one step."""
    whole = Duration.read(duration)
    return "1 step" if whole.unit == "steps" else str(Duration(whole.number * factor, "epochs"))


def small_size(size_px: int, patch_px: int, stride_px: int) -> int:
    """An eighth of the patches in a row, rounded up: 16 become 2, 20 and 24 become 3."""
    patches = (size_px - patch_px) // stride_px + 1
    return patch_px + (-(-patches // 8) - 1) * stride_px


def mix_for(config: RunConfig, toy: Path, path: Path) -> dict[str, int]:
    """All of the toy benchmark, one class of each domain to validate; train images of each.

    Its domains take the names that the recipe asks for.
    """
    table = load_manifest(toy).table.copy()
    wanted = dict.fromkeys(name for stage in config.stages for name in stage.domains or ())
    wanted |= {
        name: None for stage in config.stages for name in getattr(stage.sampler, "steps", ())
    }
    if config.task.name == "distillation":
        taught = [*config.task.teachers, *config.task.criteria]
        wanted |= {name: None for one in taught for name in one.domains or ()}
    wanted |= dict.fromkeys(config.data.leave_out)
    if config.data.leave_out:
        wanted |= {"the rest": None}
    if wanted:
        present = sorted(table["domain"].unique())[: len(wanted)]
        table = table[table["domain"].isin(present)].reset_index(drop=True)
        table["domain"] = table["domain"].map(dict(zip(present, wanted, strict=True)))
        table["label"] = table["domain"] + "/" + table["label"].str.partition("/")[2]
    val = table["label"].isin(table.groupby("domain")["label"].first())
    table["split"] = val.map({True: "val", False: "train"})
    table["role"] = val.map({True: "both", False: "train"})
    save_manifest(table, path)
    return table[~val]["domain"].value_counts().to_dict()


def small_backbone(backbone: dict[str, Any], folder: Path, depth: int | None) -> dict[str, Any]:
    """The backbone at random weights, small width and so many blocks; None: all it has."""
    small = {**backbone, "pretrained": None, "sha256": None, "revision": None}
    if backbone["name"].startswith("resnet"):
        small["kwargs"] = {**backbone["kwargs"], "layers": [1] * 4, "channels": [8] * 4}
    elif backbone["name"].startswith("vgg"):
        small["kwargs"] = {**backbone["kwargs"], "mlp_ratio": 0.01}
    elif backbone["name"].startswith("inception"):
        pass  # it has no smaller one
    elif backbone["library"] == "timm":
        sizes = {"embed_dim": WIDTH, "num_heads": 2, "mlp_ratio": 2.0}
        sizes |= {"depth": depth} if depth else {}
        small["kwargs"] = {**backbone["kwargs"], **sizes}
    else:
        small["name"] = small_clip(backbone["name"], folder, depth)
    return small


def small_clip(name: str, folder: Path, depth: int | None) -> str:
    """Tell open_clip of a small model of the same kind; returns its name."""
    values = open_clip.get_model_config(name)
    vision = values["vision_cfg"]
    if "timm_model_name" in vision:
        vision["timm_model_name"] = TIMM_IN_OPEN_CLIP[name]
    else:
        vision |= {"width": WIDTH, "head_width": WIDTH // 2, "layers": depth or vision["layers"]}
    values["embed_dim"] = WIDTH
    values["text_cfg"] |= {"width": 16, "heads": 1, "layers": 1, "vocab_size": 64}
    known = folder / "open_clip"
    known.mkdir(exist_ok=True)
    # open_clip knows the name from now on: one name must stay one model.
    new = f"twin-of-{name}-{depth or 'whole'}"
    (known / f"{new}.json").write_text(json.dumps(values))
    open_clip.add_model_config(known)
    return new


def patch_size(backbone: dict[str, Any]) -> int:
    """Side of the patches of a small backbone; of a convolutional one, what its last map is smaller by."""
    if backbone["name"].startswith("inception"):
        return 96  # below 75 px its maps would be empty
    if backbone["name"].startswith(("resnet", "vgg")):
        return 32
    if backbone["library"] == "timm":
        return int(backbone["name"].partition("patch")[2].partition("_")[0])
    vision = open_clip.get_model_config(backbone["name"])["vision_cfg"]
    return vision.get("patch_size") or 16  # of PE's small tower
