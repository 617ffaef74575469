"""Each check of the contract is broken once, by a zip or a model made for the purpose."""

import io
import resource
import stat
import zipfile

import numpy as np
import pytest
import torch
from scorer_toys import MeanColour, torchscript_bytes, write_submission, write_zip

from scorer.archive import Violation
from scorer.contract import Checklist, to_batch, verify

CPU = torch.device("cpu")
CHECKS = [
    "zip_layout",
    "format_version",
    "loads",
    "original_size",
    "floating_point",
    "dimension",
    "finite",
    "same_dimension",
    "same_answer_twice",
    "independent_of_other_images",
]


class FixedSize(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(images.float(), [2, 2]).mean([2, 3])


class NeedsContiguous(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.view(1, -1).float().mean(1, keepdim=True)


class Integers(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.amax([2, 3])


class BFloat(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean([2, 3]).to(torch.bfloat16)


class TooLong(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean([1, 2, 3]).repeat(1, 65)


class Unguarded(torch.nn.Module):
    """Divides by a norm that a black image makes zero."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean = images.float().mean([2, 3])
        return mean / mean.norm()


class LongerForPortraits(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        count = 2 if images.size(2) > images.size(3) else 1
        return images.float().mean([2, 3]).repeat(1, count)


class Noisy(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean([2, 3]) + 0.01 * torch.rand(1, 3)


class NormalisedByTheFirst(torch.nn.Module):
    """Later calls agree with each other: only a fresh load tells."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: float = 0.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean = images.float().mean([2, 3])
        if self.scale == 0.0:
            self.scale = float(mean.sum())
        return mean / self.scale


class CountsSizeChanges(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.height: int = 0
        self.changes: int = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.size(2) != self.height:
            self.changes += 1
        self.height = images.size(2)
        return images.float().mean([2, 3]) + self.changes


@pytest.mark.parametrize(
    ("module", "check", "verdict"),
    [
        (FixedSize(), "original_size", "fails at height 1, width 1: "),
        (NeedsContiguous(), "original_size", "fails at height 1, width 2000: "),
        (Integers(), "floating_point", "torch.uint8 for a 1x1 image"),
        (BFloat(), "floating_point", "torch.bfloat16"),
        (TooLong(), "dimension", "65 numbers for a 1x1 image"),
        (Unguarded(), "finite", "3 of 3 numbers are NaN or infinite for a black image"),
        (LongerForPortraits(), "same_dimension", "3 for a 1x1 image, 6 for a 2000x1 image"),
        (Noisy(), "same_answer_twice", "two calls on one image differ by 0.00"),
        (NormalisedByTheFirst(), "independent_of_other_images", "alone and after others differ"),
        (
            CountsSizeChanges(),
            "independent_of_other_images",
            "before and after another differ by 2",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_a_model_that_breaks_the_contract_is_named(tmp_path, module, check, verdict):
    expect_violation(write_submission(tmp_path / "s.zip", module), check, verdict)


def expect_violation(path, check, verdict):
    checklist = Checklist()
    with pytest.raises(Violation):
        verify(path, checklist, CPU, path.parent)
    *earlier, last = checklist.checks
    assert (last.name, last.passed) == (check, False)
    assert verdict in last.detail
    assert "; demanded: " in last.detail and "\n" not in last.detail
    assert [c.name for c in earlier] == CHECKS[: CHECKS.index(check)]
    assert all(c.passed for c in earlier)


def test_a_full_disk_is_no_fault_of_the_submission(submission, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            verify(submission, Checklist(), CPU, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_good_model_passes_every_check(submission, tmp_path):
    checklist = Checklist()
    model = verify(submission, checklist, CPU, tmp_path)
    assert [c.name for c in checklist.checks] == CHECKS
    assert all(c.passed for c in checklist.checks)
    assert not model.training


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["final_model.pt"],
        ["model/saved_model.pt"],
        ["../saved_model.pt"],
        ["/saved_model.pt"],
        ["saved_model.pt", "notes.txt"],
    ],
)
def test_zip_layout(tmp_path, names):
    path = write_zip(tmp_path / "s.zip", dict.fromkeys(names, b"x"))
    expect_violation(path, "zip_layout", f"{len(names)} members: ")


def test_a_link_is_refused(tmp_path):
    link = zipfile.ZipInfo("saved_model.pt")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr(link, "../elsewhere.pt")
    expect_violation(tmp_path / "s.zip", "zip_layout", "saved_model.pt is a link")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = write_zip(tmp_path / "s.zip", {"saved_model.pt": bytes(10**6)})
    expect_violation(path, "zip_layout", "unpack to 1,000,000, a ratio above 100")


def test_an_oversized_model_is_refused(submission, monkeypatch):
    monkeypatch.setattr("scorer.archive.MAX_BYTES", 1000)
    expect_violation(submission, "zip_layout", "bytes unpacked, more than 1,000")


@pytest.mark.parametrize("position", [50, 2000])
def test_a_damaged_zip_is_refused(tmp_path, submission, position):
    content = bytearray(submission.read_bytes())
    content[position] ^= 0xFF
    (tmp_path / "s.zip").write_bytes(content)
    expect_violation(tmp_path / "s.zip", "zip_layout", "not a readable zip archive")


def test_a_file_that_is_no_zip_is_refused(tmp_path):
    (tmp_path / "s.zip").write_bytes(b"not a zip")
    expect_violation(tmp_path / "s.zip", "zip_layout", "not a readable zip archive")


def test_an_archive_that_torch_1_11_cannot_read_is_refused(tmp_path):
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(torchscript_bytes(MeanColour()))) as old,
        zipfile.ZipFile(buffer, "w") as new,
    ):
        for name in old.namelist():
            new.writestr(name, b"10\n" if name.endswith("/version") else old.read(name))
    path = write_zip(tmp_path / "s.zip", {"saved_model.pt": buffer.getvalue()})
    expect_violation(path, "format_version", "format version 10 (re-export with export.py")


def test_something_else_than_torchscript_is_refused(tmp_path):
    path = write_zip(tmp_path / "s.zip", {"saved_model.pt": b"junk"})
    expect_violation(path, "format_version", "saved_model.pt is no TorchScript archive")
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, buffer)
    path = write_zip(tmp_path / "s.zip", {"saved_model.pt": buffer.getvalue()})
    expect_violation(path, "loads", "constants.pkl")


def test_the_input_is_uint8_of_original_size_in_pixel_order():
    pixels_HW3 = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    batch = to_batch(pixels_HW3)
    assert (batch.dtype, batch.shape) == (torch.uint8, (1, 3, 2, 5))
    assert batch[0, 1, 1, 4] == pixels_HW3[1, 4, 1]
