"""Run folders: opened, refused, resumed with what may change."""

from __future__ import annotations

import fcntl
import threading
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from accelerate import Accelerator

from guie.base.errors import UserError
from guie.config import MixConfig, RunConfig, config_from
from guie.config.ensemble import ComposeConfig
from guie.training.run_folder import (
    RunLog,
    add_to_record,
    check_images,
    check_weights,
    differences,
    keep_classes,
    keep_images,
    locked,
    open_run,
    read_record,
    read_summary,
)


def config(out: Path, **changes) -> RunConfig:
    values = {
        "name": "t",
        "out": str(out),
        "data": {"manifest": "m.csv"},
        "model": {"backbone": {"library": "timm", "name": "x"}, "image": {"size_px": 8}},
        "stages": [{"epochs": 1, "lr": {"head": 1e-3, "classes": 0.0}}],
    }
    return RunConfig.model_validate({**values, **changes})


def test_what_differs_is_named_by_key_and_both_values(tmp_path: Path) -> None:
    other = config(
        tmp_path,
        stages=[
            {"epochs": 1, "lr": {"head": 2e-3, "classes": 0.0}},
            {"epochs": 2, "lr": {"classes": 0.0}},
        ],
    )
    found = differences(config(tmp_path), other)
    assert found[0] == "stages.0.lr.head: 0.001, now 0.002"
    assert any(text.startswith("stages.1.epochs: None, now 2") for text in found)


def test_what_does_not_change_a_run_may_change(tmp_path: Path) -> None:
    stages = [{"epochs": 1, "lr": {"head": 1e-3, "classes": 0.0}, "accumulate": 4}]
    data = {"manifest": "m.csv", "workers": 7}
    other = config(tmp_path, stages=stages, data=data, on_out_of_memory="halve")
    assert differences(config(tmp_path), other) == []


def test_an_unfinished_run_is_resumed_only_when_asked(tmp_path: Path) -> None:
    one = config(tmp_path)
    folder, _ = open_run(one, resume=False, overwrite=False)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step_00000001-0123456789abcdef.pt").touch()
    with pytest.raises(UserError, match="unfinished run; --resume"):
        open_run(one, resume=False, overwrite=False)
    assert open_run(one, resume=True, overwrite=False) == (folder, False)
    other = config(tmp_path, seed=1)
    with pytest.raises(UserError, match="another config .seed: 0, now 1"):
        open_run(other, resume=True, overwrite=False)
    open_run(other, resume=False, overwrite=True)
    assert (
        not (folder / "checkpoints").exists() and "seed: 1" in (folder / "config.yaml").read_text()
    )


def test_a_run_that_never_stepped_gives_way_to_another(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    keep_classes(folder, ["a/1"])
    for name in ("metrics.jsonl", "events.out.tfevents.1.vm.2.0", "dropped.csv"):
        (folder / name).touch()
    other = config(tmp_path, seed=1)
    assert open_run(other, resume=False, overwrite=False) == (folder, False)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "record.json"]
    assert "seed: 1" in (folder / "config.yaml").read_text()


@pytest.mark.parametrize("left", ["metrics.jsonl", "model.safetensors", "notes.txt"])
def test_what_a_folder_holds_besides_is_not_given_up(left: str, tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    (folder / left).write_text('{"step": 20}\n')
    with pytest.raises(UserError, match="another config .seed: 0, now 1"):
        open_run(config(tmp_path, seed=1), resume=False, overwrite=False)
    assert (folder / left).exists()


def holding(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's")
    return folder


def contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", [".", "..", "...", "a/b", "", "a\nb", "a b"])
def test_a_name_names_one_folder(name: str, tmp_path: Path) -> None:
    shared = {"name": name, "data": {"manifest": "m.csv"}}
    for model, more in (
        (RunConfig, {"model": config(tmp_path).model.model_dump(), "stages": []}),
        (ComposeConfig, {"members": ["runs/a"]}),
        (MixConfig, {"out": "m.csv", "sources": [{"kind": "toy", "path": "t"}]}),
    ):
        with pytest.raises(UserError, match="name: must be letters, .* not dots alone"):
            config_from(shared | more, model)


@pytest.mark.parametrize(
    "names",
    [
        ["photo.jpg"],
        ["config.yaml", "model.safetensors"],  # of another program
        ["record.json"],
        ["other_run/config.yaml"],  # a folder of runs
        ["step_00000001-0123456789abcdef.pt"],
    ],
)
def test_only_runs_are_overwritten(names: list[str], tmp_path: Path) -> None:
    folder = holding(tmp_path / "t", names)
    with pytest.raises(UserError, match=r"t: holds .* no record.json .* choose another name") as e:
        open_run(config(tmp_path), resume=False, overwrite=True)
    assert "\n" not in str(e.value) and contents(folder) == set(names)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "record.json", "summary.json", "dropped.csv"]
)
def test_a_new_run_replaces_no_file_that_is_not_its_own(name: str, tmp_path: Path) -> None:
    folder = holding(tmp_path / "t", [name, "notes.txt"])
    with pytest.raises(UserError, match=f"holds {name}, which would be replaced"):
        open_run(config(tmp_path), resume=False, overwrite=False)
    assert (folder / name).read_text() == "the user's"
    (folder / name).unlink()
    assert open_run(config(tmp_path), resume=False, overwrite=False) == (folder, False)
    assert (folder / "notes.txt").exists()


def test_overwriting_leaves_what_no_run_writes(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    checkpoint = "checkpoints/step_00000001-0123456789abcdef.pt"
    ours = ["model.safetensors", "last_classes.safetensors", "frozen-0123456789abcdef.json"]
    ours += ["summary.json", ".model.12.tmp.safetensors", checkpoint, "checkpoints/new.pt"]
    theirs = ["E.npz", "frozen-2024.json", "checkpoints/step_best.pt", "models/model.safetensors"]
    holding(folder, ours + theirs)
    assert open_run(config(tmp_path, seed=1), resume=False, overwrite=True) == (folder, False)
    assert contents(folder) == {"config.yaml", "record.json", *theirs}


def test_a_link_is_removed_and_never_followed(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    disk = holding(tmp_path / "disk", ["step_00000001-0123456789abcdef.pt"])
    (folder / "checkpoints").symlink_to(disk)
    open_run(config(tmp_path, seed=1), resume=False, overwrite=True)
    assert not (folder / "checkpoints").is_symlink() and len(contents(disk)) == 1


def test_a_run_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "disk")
    for seed in (0, 1):
        open_run(config(tmp_path, seed=seed), resume=False, overwrite=True)
    assert (tmp_path / "t").is_symlink()
    assert contents(tmp_path / "disk") == {"config.yaml", "record.json"}


def test_a_run_does_not_overwrite_what_it_begins_with(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    holding(folder, ["model.safetensors"])
    other = config(tmp_path, start_from=str(folder))
    with pytest.raises(UserError, match="start_from: --overwrite would delete"):
        open_run(other, resume=False, overwrite=True)
    assert (folder / "model.safetensors").exists()


def test_a_file_in_place_of_the_checkpoints_is_refused(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    holding(folder, ["checkpoints"])
    with pytest.raises(UserError, match="t/checkpoints: needed as a folder; move the file"):
        open_run(config(tmp_path), resume=True, overwrite=False)


@pytest.mark.parametrize("theirs", ["dropped_by_hand.csv", "dropped.csv/photo.jpg"])
def test_a_run_that_never_stepped_takes_no_file_along(theirs: str, tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    holding(folder, [theirs])
    with suppress(UserError):
        open_run(config(tmp_path, seed=1), resume=False, overwrite=False)
    assert (folder / theirs).exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    one, folder = config(tmp_path), tmp_path / "t"
    with locked(folder):
        open_run(one, resume=False, overwrite=True)  # keeps the lock it holds
        with pytest.raises(UserError, match="another process trains there"), locked(folder):
            pass
    with locked(folder):
        pass


def test_a_changed_class_list_is_named(tmp_path: Path) -> None:
    keep_classes(tmp_path, ["a/1", "a/2", "b/1"])
    keep_classes(tmp_path, ["a/1", "a/2", "b/1"])
    with pytest.raises(UserError, match="3 classes.* now has 2 .missing: a/2, b/1; new: c/1"):
        keep_classes(tmp_path, ["a/1", "c/1"])


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\r", "\x0b"])
def test_a_class_list_is_read_as_it_was_written(end: str, tmp_path: Path) -> None:
    """Runs were begun with such labels before manifests refused them."""
    for _ in range(2):
        keep_classes(tmp_path, [f"a/red{end}one", "a/two"])
    with pytest.raises(UserError, match="started with 2 classes"):
        keep_classes(tmp_path, ["a/two"])


def states(**changes: tuple[int, int]) -> pd.DataFrame:
    of = {name: (100 + n, 10**18 + n) for n, name in enumerate(("a", "b", "c"))} | changes
    found = pd.DataFrame.from_dict(of, orient="index", columns=["size_bytes", "mtime_ns"])
    return found.rename_axis("image_path").reset_index()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"b": (99, 10**18 + 1)}, "1 of 3 training images changed .* b .101 bytes, now 99"),
        ({"c": (102, 10**18)}, "1 of 3 .* c .its modification time.; restore the old ones, or"),
        ({"a": (100, 7), "b": (1, 7), "c": (102, 7)}, "3 of 3 .* first b .101 bytes, now 1"),
    ],
)
def test_images_that_were_replaced_are_named(changes: dict, said: str, tmp_path: Path) -> None:
    keep_images(tmp_path, states())
    check_images(tmp_path, states())
    with pytest.raises(UserError, match=said) as refusal:
        check_images(tmp_path, states(**changes))
    assert "\n" not in str(refusal.value)
    (tmp_path / "images.npz").unlink()  # what the message says, and runs of before have none
    check_images(tmp_path, states(**changes))


def test_a_copy_of_the_images_is_told_and_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_images(tmp_path, states())
    check_images(tmp_path, states(a=(100, 5), b=(101, 6), c=(102, 7)))
    assert "all 3 training images have another modification time" in capsys.readouterr().err


def test_a_damaged_list_of_images_is_told_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "images.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"images.npz: damaged; remove it"):
        check_images(tmp_path, states())


@pytest.mark.parametrize("line", [b'{"loss": 1}', b'{"step": "1"}', b"hello}", b'{"step": "\xe9"}'])
def test_a_damaged_log_is_named_and_kept(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(UserError, match="metrics.jsonl: a line is not JSON with a step .*repair"):
        RunLog(tmp_path, Accelerator(cpu=True), 1)
    assert line in (tmp_path / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"best": 1}', b"\xff"])
def test_a_damaged_summary_or_record_is_named(text: bytes, tmp_path: Path) -> None:
    for name, read in (("summary.json", read_summary), ("record.json", read_record)):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(UserError, match=f"{name}: not .*; re"):
            read(tmp_path)


def test_a_damaged_class_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match="classes.txt: damaged, it is not UTF-8; restore it"):
        keep_classes(tmp_path, ["cafe"])


def test_retention_goes_on_towards_the_same_weights_only(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    weights = {"file": "clip.safetensors", "sha256": "ab" * 32, "from": "a hub"}
    add_to_record(folder, weights=weights)
    check_weights(folder, {**weights, "from": "a copy of it"})
    with pytest.raises(UserError, match="clip.safetensors .* has changed"):
        check_weights(folder, {**weights, "sha256": "cd" * 32})


def test_a_lock_that_the_loaders_of_a_killed_run_still_hold_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    with locked(folder):
        pass
    loader = (tmp_path / "t/.lock").open("a+")
    fcntl.flock(loader, fcntl.LOCK_EX)
    threading.Timer(0.3, loader.close).start()
    with locked(folder):
        assert loader.closed
