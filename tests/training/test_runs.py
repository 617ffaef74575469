"""Run folders: opened, refused, resumed with what may change."""

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from accelerate import Accelerator

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.training.run_folder import (
    RunLog,
    check_images,
    differences,
    keep_classes,
    keep_images,
    locked,
    open_run,
    read_record,
    read_summary,
)

CHECKPOINT = "checkpoints/step_00000001-0123456789abcdef.pt"
Open = Callable[..., Path]


def config(out: Path = Path(), **changes: Any) -> RunConfig:
    values = {
        "name": "t",
        "out": str(out),
        "data": {"manifest": "m.csv"},
        "model": {"backbone": {"library": "timm", "name": "x"}, "image": {"size_px": 8}},
        "stages": [{"epochs": 1, "lr": {"head": 1e-3, "classes": 0.0}}],
    }
    return RunConfig.model_validate({**values, **changes})


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Open the folder of a run that is not finished; return it."""

    def open_again(resume: bool = False, overwrite: bool = False, **changes: Any) -> Path:
        folder, finished = open_run(config(tmp_path, **changes), resume=resume, overwrite=overwrite)
        assert folder == tmp_path / "t" and not finished
        return folder

    return open_again


def holding(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's")
    return folder


def contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_differences_name_key_and_both_values() -> None:
    stages = [{"epochs": 1, "lr": {"head": 2e-3, "classes": 0.0}}]
    stages.append({"epochs": 2, "lr": {"classes": 0.0}})
    found = differences(config(), config(stages=stages))
    assert found[0] == "stages.0.lr.head: 0.001, now 0.002"
    assert any(text.startswith("stages.1.epochs: None, now 2") for text in found)
    stages = [{"epochs": 1, "lr": {"head": 1e-3, "classes": 0.0}, "accumulate": 4}]
    data = {"manifest": "m.csv", "workers": 7}
    assert not differences(config(), config(stages=stages, data=data, on_out_of_memory="halve"))


def test_an_unfinished_run_is_resumed_only_when_wanted(opened: Open) -> None:
    folder = holding(opened(), CHECKPOINT)
    with pytest.raises(UserError, match="unfinished run; --resume"):
        opened()
    opened(resume=True)
    with pytest.raises(UserError, match="another config .seed: 0, now 1"):
        opened(resume=True, seed=1)
    opened(overwrite=True, seed=1)
    assert not (folder / "checkpoints").exists()
    assert "seed: 1" in (folder / "config.yaml").read_text()


def test_a_run_that_never_stepped_gives_way_to_another(opened: Open) -> None:
    """But not if it logged a step, or if the folder has any other file."""
    folder = opened()
    for other in ("metrics.jsonl", "model.safetensors", "notes.txt"):
        holding(folder, other)
        with pytest.raises(UserError, match="another config .seed: 0, now 1"):
            opened(seed=1)
        (folder / other).unlink()
    keep_classes(folder, ["a/1"])
    for name in ("metrics.jsonl", "events.out.tfevents.1.vm.2.0", "dropped.csv"):
        (folder / name).touch()
    opened(seed=1)
    assert contents(folder) == {"config.yaml", "record.json"}
    assert "seed: 1" in (folder / "config.yaml").read_text()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "record.json"])
def test_no_file_of_another_program_is_replaced(
    name: str, overwrite: bool, opened: Open, tmp_path: Path
) -> None:
    others = ["notes.txt", "other_run/config.yaml", "checkpoints/new.pt"]
    folder = holding(tmp_path / "t", name, *others)
    with pytest.raises(UserError, match=f"holds {name}, which would be replaced, .*\\.json"):
        opened(overwrite=overwrite)
    assert (folder / name).read_text() == "the user's"
    (folder / name).unlink()
    opened(overwrite=overwrite)
    assert contents(folder) == {"config.yaml", "record.json", *others}


def test_overwriting_leaves_what_no_run_writes(opened: Open) -> None:
    ours = ["model.safetensors", "last_classes.safetensors", "frozen-0123456789abcdef.json"]
    ours += ["summary.json", ".model.12.tmp.safetensors", CHECKPOINT, "checkpoints/new.pt"]
    theirs = ["E.npz", "frozen-2024.json", "checkpoints/step_best.pt", "models/model.safetensors"]
    folder = holding(opened(), *ours, *theirs)
    opened(overwrite=True, seed=1)
    assert contents(folder) == {"config.yaml", "record.json", *theirs}


def test_links_are_kept_or_removed_and_never_followed(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "disk")  # a run's folder may be on another disk
    folder = opened(overwrite=True)
    others = holding(tmp_path / "others", Path(CHECKPOINT).name)
    (folder / "checkpoints").symlink_to(others)
    opened(overwrite=True, seed=1)
    assert folder.is_symlink() and not (folder / "checkpoints").is_symlink()
    assert contents(others) and contents(tmp_path / "disk") == {"config.yaml", "record.json"}


def test_a_run_does_not_overwrite_what_it_begins_with(opened: Open) -> None:
    folder = holding(opened(), "model.safetensors")
    with pytest.raises(UserError, match="start_from: --overwrite would delete"):
        opened(overwrite=True, start_from=str(folder))
    assert (folder / "model.safetensors").exists()


def test_one_process_at_a_time(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    with locked(folder):
        opened(overwrite=True)  # keeps the lock it holds
        with pytest.raises(UserError, match="another process trains there"), locked(folder):
            pass
    loader = (folder / ".lock").open("a+")  # as loaders of a killed run still hold it
    fcntl.flock(loader, fcntl.LOCK_EX)
    threading.Timer(0.3, loader.close).start()
    with locked(folder):
        assert loader.closed


def test_a_changed_class_list_is_named(tmp_path: Path) -> None:
    """Also of labels as runs had before manifests refused them."""
    for _ in range(2):
        keep_classes(tmp_path, ["a/1", "a/2\u2028\r2", "b/1"])
    with pytest.raises(UserError, match="3 classes.* now has 2 .missing: a/2.*, b/1; new: c/1"):
        keep_classes(tmp_path, ["a/1", "c/1"])


def states(**changes: tuple[int, int]) -> pd.DataFrame:
    of = {name: (100 + n, 10**18 + n) for n, name in enumerate(("a", "b", "c"))} | changes
    found = pd.DataFrame.from_dict(of, orient="index", columns=["size_bytes", "mtime_ns"])
    return found.rename_axis("image_path").reset_index()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": (99, 10**18 + 1)}, "1 of 3 training images changed .* b .101 bytes, now 99"),
        ({"c": (102, 10**18)}, "1 of 3 .* c .its modification time.; restore the old ones, or"),
        ({"a": (100, 7), "b": (1, 7), "c": (102, 7)}, "3 of 3 .* first b .101 bytes, now 1"),
    ],
)
def test_images_that_were_replaced_are_named(changes: dict, message: str, tmp_path: Path) -> None:
    keep_images(tmp_path, states())
    check_images(tmp_path, states())
    with pytest.raises(UserError, match=message) as refusal:
        check_images(tmp_path, states(**changes))
    assert "\n" not in str(refusal.value)
    (tmp_path / "images.npz").unlink()  # the remedy; runs of before have none
    check_images(tmp_path, states(**changes))


def test_a_copy_of_the_images_is_accepted_with_a_message(tmp_path: Path, capsys) -> None:
    keep_images(tmp_path, states())
    check_images(tmp_path, states(a=(100, 5), b=(101, 6), c=(102, 7)))
    assert "all 3 training images have another modification time" in capsys.readouterr().err


def log(folder: Path) -> None:
    RunLog(folder, Accelerator(cpu=True), 1)


@pytest.mark.parametrize(
    ("name", "content", "read", "message"),
    [
        *(
            ("metrics.jsonl", b'{"step": 1}\n' + line + b"\n", log, "a line is not JSON .*repair")
            for line in (b'{"loss": 1}', b'{"step": "1"}', b"hello}", b'{"step": "\xe9"}')
        ),
        *(("summary.json", text, read_summary, "not .*; re") for text in (b"", b"{}", b"[]")),
        *(("record.json", text, read_record, "not .*; re") for text in (b"", b"{}", b"\xff")),
        ("images.npz", b"PK", lambda folder: check_images(folder, states()), "damaged; remove it"),
        ("classes.txt", b"caf\xe9\n", lambda folder: keep_classes(folder, []), "it is not UTF-8"),
    ],
)
def test_a_damaged_file_is_named_and_kept(
    name: str, content: bytes, read: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: .*{message}"):
        read(tmp_path)
    assert (tmp_path / name).read_bytes() == content
