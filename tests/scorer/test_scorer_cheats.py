"""Submissions that answer by more than the image: each knows how to look honest while it is checked.

The fixture's manifest lists four classes of four images one after another, so that who knows how many
images came before knows the class. Images of data sets are told from the scorer's own by their size.
"""

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from scorer_toys import arguments, rewritten, torchscript_bytes, write_submission

import score
from scorer import embedding
from scorer.errors import Violation
from scorer.runtime import refuse_file_access

SLOTS = 64  # the last one is written to by whoever only looks
SEEN, BATCHES, FIRST = torch.zeros(SLOTS), torch.zeros(1), torch.tensor([0])
REPLAYED = torch.rand(SLOTS, generator=torch.Generator().manual_seed(7))


def write(memory: torch.Tensor, slot: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    memory.index_put_((slot,), value)
    return memory.clone()


# Traced, so that the memory is a constant of a function, which is no attribute of any module.
seen = torch.jit.trace(
    lambda slot, value: write(SEEN, slot, value),
    (torch.tensor([SLOTS - 1]), torch.zeros(1)),
    check_trace=False,
)
batches = torch.jit.trace(
    lambda more: write(BATCHES, FIRST, BATCHES + more),
    torch.zeros(1),
    check_trace=False,
)


@torch.jit.script
def is_of_a_data_set(images: torch.Tensor) -> bool:
    return 1 < images.size(2) < 100


@torch.jit.script
def images_before(images: torch.Tensor) -> int:
    """How many other pictures were seen before this one was seen first."""
    colour = images.float().mean().reshape(1)
    colours = seen(torch.tensor([63]), torch.zeros(1))
    if not bool(((colours - colour).abs() < 1e-9).any()):
        colours = seen(torch.count_nonzero(colours).reshape(1), colour)
    return int(torch.nonzero((colours - colour).abs() < 1e-9)[0, 0])


class KnowsTheOrder(torch.nn.Module):
    """Answers by how many images came before; and as it did before, when it is asked again."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(1, 16)
        if is_of_a_data_set(images):
            found[0, images_before(images) // 4] = 1.0
        return found


class HidesInRounding(torch.nn.Module):
    """Knows the order too, and says so far below the rounding of a number that is always the same."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(1, 17)
        found[0, 16] = 1e6
        if is_of_a_data_set(images):
            found[0, images_before(images) // 4] = 0.4
        return found


class Sleeps(torch.nn.Module):
    """Honest for the first ten images, so that few that are asked for again would show nothing."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = images.float().mean([2, 3])
        if is_of_a_data_set(images) and images_before(images) >= 10:
            return found * 0.5
        return found


class LooksAtItsBatch(torch.nn.Module):
    """With --fast: honest for the batches that are proven, then drawn to the mean of what came along."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = images.float().mean([2, 3])
        if images.size(0) > 1 and int(batches(torch.ones(1))) > 3:
            return 0.5 * found + 0.5 * found.mean(0, keepdim=True)
        return found


class CountsByTheGenerator(torch.nn.Module):
    """Draws random numbers from a seed of its own: which one comes says how many came before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("replayed", REPLAYED)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(1, 16)
        if is_of_a_data_set(images):
            same = torch.nonzero((self.replayed - torch.rand(1)).abs() < 1e-7)
            before = 0
            if len(same) > 0:
                before = int(same[0, 0]) + 1
            else:
                torch.manual_seed(7)
            found[0, before // 4] = 1.0
        return found


class ReadsLabels(torch.nn.Module):
    """Finds its own size in a table that it reads from the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.length = str(path), path.stat().st_size

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        table = torch.from_file(self.path, False, self.length, dtype=torch.uint8).float()
        return table[: images.size(2)].mean().repeat(1, 3)


def scored(module: torch.nn.Module, manifest: Path, *words: str) -> dict:
    """score.json of a submission, whose memory is empty in its file."""
    SEEN.zero_(), BATCHES.zero_()
    path = write_submission(manifest.parent / "cheat.zip", module)
    out = manifest.parent / "score.json"
    try:
        score.main([*arguments(path, manifest, out), *words])
    except SystemExit as stopped:
        assert stopped.code == 1
    return json.loads(out.read_text())


@pytest.mark.parametrize("module", [KnowsTheOrder(), Sleeps()], ids=lambda m: type(m).__name__)
def test_what_a_model_remembers_in_hiding_shows_in_a_fresh_process(manifest, module):
    result = scored(module, manifest)
    assert result["verdict"] == "depends_on_order", result.get("pooled")
    *earlier, last = result["checks"]
    assert all(check["passed"] for check in earlier), "it is honest while it is checked"
    assert "answers among other images and in a fresh process differ by" in last["detail"]


def test_what_passes_for_rounding_must_find_the_same_neighbours(manifest):
    result = scored(HidesInRounding(), manifest)
    assert result["verdict"] == "depends_on_order"
    assert "of the neighbours of images differ" in result["checks"][-1]["detail"]


def test_a_batch_is_compared_with_single_images_to_the_end(manifest, monkeypatch):
    monkeypatch.setattr(embedding, "BATCH", 2)
    for path in (manifest.parent / "images").rglob("*.*"):
        with Image.open(path) as image:
            resized = image.convert("RGB").resize((30, 30))
        resized.save(path)
    assert scored(LooksAtItsBatch(), manifest, "--fast")["verdict"] == "depends_on_order"


def test_the_random_generator_is_no_memory(manifest):
    """It is seeded anew before each image: the cheat takes every image for the first."""
    result = scored(CountsByTheGenerator(), manifest)
    assert result["verdict"] == "keeps_the_contract" and result["pooled"]["mmp_at_5"] < 0.6


def test_labels_cannot_be_read(manifest):
    result = scored(ReadsLabels(manifest), manifest)
    assert result["verdict"] == "reads_files"
    assert "operators that read or write files: from_file" in result["checks"][-1]["detail"]


class Plain(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(images)


def written_by_hand(folder: Path, lines: str, upper: bool = False) -> Path:
    """A TorchScript archive in whose code other lines stand, and that PyTorch loads all the same."""
    path = folder / "saved_model.pt"
    with (
        zipfile.ZipFile(io.BytesIO(rewritten(torchscript_bytes(Plain()), {}))) as old,
        zipfile.ZipFile(path, "w") as new,
    ):
        for name in old.namelist():
            content = old.read(name).replace(b"return torch.relu(images)", lines.encode())
            if upper:
                name = name.replace("code/", "CODE/").replace(".py", ".PY")
            new.writestr(name, content)
    torch.jit.load(str(path))
    return path


@pytest.mark.parametrize(
    "lines",
    [
        "return torch.from_file('x', False, 4)",
        "f = torch.from_file\n    return f('x', False, 4)",
        "return getattr(torch, 'from_file')('x', False, 4)",
        "t = ops\n    return t.aten.from_file('x', False, 4)",
        "torch.save(images, 'x')\n    return images",
    ],
)
def test_file_access_is_found_by_whatever_name_it_goes(tmp_path, lines):
    with pytest.raises(Violation, match="operators that read or write files: (from_file|save)"):
        refuse_file_access(written_by_hand(tmp_path, lines))


READS = "return torch.from_file('x', False, 4)"


def test_code_is_found_in_any_case(tmp_path):
    with pytest.raises(Violation, match="read or write files"):
        refuse_file_access(written_by_hand(tmp_path, READS, upper=True))


def test_a_second_list_of_records_deceives_nobody(tmp_path):
    """Python's zipfile takes the list right before the end record, PyTorch the one that this names."""
    path = written_by_hand(tmp_path, READS)
    guilty = path.read_bytes()
    innocent = written_by_hand(tmp_path, "return images".ljust(len(READS))).read_bytes()
    assert len(innocent) == len(guilty), "else the end record would not fit both"
    end_bytes = 22
    path.write_bytes(guilty[:-end_bytes] + innocent)
    with zipfile.ZipFile(path) as archive:
        (code,) = (name for name in archive.namelist() if name.endswith(".py"))
        assert b"from_file" not in archive.read(code)
    assert "from_file" in torch.jit.load(str(path)).code
    with pytest.raises(Violation, match="read or write files"):
        refuse_file_access(path)
