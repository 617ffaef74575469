"""Submissions that answer by more than the image: each looks honest while it is checked.

The fixture's manifest lists four classes of four images one after another, so a model that knows how many
images came before knows the class. It recognises images of data sets by their size.
"""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from scorer_toys import arguments, for_1_11, toy, write_submission

import score
from scorer.errors import Violation
from scorer.runtime import refuse_file_access

SLOTS = 64  # a call that only reads writes to the last one
SEEN = torch.zeros(SLOTS)
REPLAYED = torch.rand(SLOTS, generator=torch.Generator().manual_seed(7))


def write(slot: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    SEEN.index_put_((slot,), value)
    return SEEN.clone()


# Traced, so that the memory is a constant of a function, which is no attribute of any module.
seen = torch.jit.trace(write, (torch.tensor([SLOTS - 1]), torch.zeros(1)), check_trace=False)


@torch.jit.script
def is_of_a_data_set(images: torch.Tensor) -> bool:
    return 1 < images.size(2) < 100


@torch.jit.script
def images_before(images: torch.Tensor) -> int:
    """How many other images were seen before this one was first seen."""
    colour = images.float().mean().reshape(1)
    colours = seen(torch.tensor([63]), torch.zeros(1))
    if not bool(((colours - colour).abs() < 1e-9).any()):
        colours = seen(torch.count_nonzero(colours).reshape(1), colour)
    return int(torch.nonzero((colours - colour).abs() < 1e-9)[0, 0])


class KnowsTheOrder(torch.nn.Module):
    """Answers by how many images came before; a repeated image gets its first answer.

    With a large constant number, the rest of the answer is far below the tolerance for rounding.
    """

    def __init__(self, constant: float = 0.0, size: float = 1.0) -> None:
        super().__init__()
        self.constant, self.size = constant, size

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(1, 17)
        found[0, 16] = self.constant
        if is_of_a_data_set(images):
            found[0, images_before(images) // 4] = self.size
        return found


class Sleeps(torch.nn.Module):
    """Honest for the first ten images, so a repeated sample of few images would show nothing."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = images.float().mean([2, 3])
        if is_of_a_data_set(images) and images_before(images) >= 10:
            return found * 0.5
        return found


class CountsByTheGenerator(torch.nn.Module):
    """Draws random numbers from its own seed: the next one shows how many images came before."""

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
    """Looks up the image's size in a table that it reads from the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.length = str(path), path.stat().st_size

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        table = torch.from_file(self.path, False, self.length, dtype=torch.uint8).float()
        return table[: images.size(2)].mean().repeat(1, 3)


def scored(module: torch.nn.Module, manifest: Path) -> dict:
    """score.json of a submission, whose memory is empty in its file."""
    SEEN.zero_()
    path = write_submission(manifest.parent / "cheat.zip", module)
    out = manifest.parent / "score.json"
    try:
        score.main(arguments(path, manifest, out))
    except SystemExit as stopped:
        assert stopped.code == 1
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    ("module", "detail"),
    [
        (KnowsTheOrder(), "answers among other images and in a fresh process differ by"),
        (Sleeps(), "answers among other images and in a fresh process differ by"),
        (KnowsTheOrder(1e6, 0.4), "of the neighbours of images differ"),
    ],
    ids=["order", "sleeps", "rounding"],
)
def test_a_hidden_memory_shows_in_a_fresh_process(manifest, module, detail):
    result = scored(module, manifest)
    assert result["verdict"] == "depends_on_order", result.get("pooled")
    *earlier, last = result["checks"]
    assert all(check["passed"] for check in earlier), "it is honest while it is checked"
    assert detail in last["detail"]


def test_the_random_generator_is_no_memory(manifest):
    """It is seeded anew before each image: the cheat takes every image for the first."""
    result = scored(CountsByTheGenerator(), manifest)
    assert result["verdict"] == "keeps_the_contract" and result["pooled"]["mmp_at_5"] < 0.6


def test_labels_cannot_be_read(manifest):
    result = scored(ReadsLabels(manifest), manifest)
    assert result["verdict"] == "reads_files"
    assert "operators that read or write files: from_file" in result["checks"][-1]["detail"]


READS = "return torch.from_file('x', False, 4)"


def written_by_hand(folder: Path, lines: str, upper: bool = False) -> Path:
    """A TorchScript archive with other lines of code, which PyTorch loads all the same."""
    path = folder / "saved_model.pt"
    path.write_bytes(for_1_11(toy("torch.relu(images)")))
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            if upper:
                name = name.replace("code/", "CODE/").replace(".py", ".PY")
            new.writestr(name, content.replace(b"return torch.relu(images)", lines.encode()))
    torch.jit.load(str(path))
    return path


@pytest.mark.parametrize("upper", [False, True])  # PyTorch finds records in any case
@pytest.mark.parametrize(
    "lines",
    [
        READS,
        "f = torch.from_file\n    return f('x', False, 4)",
        "return getattr(torch, 'from_file')('x', False, 4)",
        "t = ops\n    return t.aten.from_file('x', False, 4)",
        "torch.save(images, 'x')\n    return images",
    ],
)
def test_file_access_is_found_in_every_spelling(tmp_path, lines, upper):
    with pytest.raises(Violation, match="operators that read or write files: (from_file|save)"):
        refuse_file_access(written_by_hand(tmp_path, lines, upper))


def test_a_second_list_of_records_deceives_nobody(tmp_path):
    """Python's zipfile takes the list right before the end record, PyTorch the one that it names."""
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
