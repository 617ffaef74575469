"""Each check of the contract is broken once, by a zip or a model made for the purpose."""

import io
from contextlib import suppress

import pytest
import torch
from scorer_toys import (
    MEAN,
    MeanColour,
    for_1_11,
    torchscript_bytes,
    toy,
    write_submission,
    write_zip,
)

from scorer import contract
from scorer.contract import Checklist, verify
from scorer.errors import UserError, Violation
from scorer.process import Limits, ModelProcess

CHECKS = [name for name in contract.CHECKS if name != "every_image"]
QUICK = Limits(memory_bytes=2**29, threads=1, image_seconds=60)


def checked(path, limits=QUICK, torch="1.11") -> Checklist:
    checklist = Checklist()
    with suppress(Violation):
        verify(path, path.with_suffix(".pt"), checklist, limits, torch)
        assert not checklist.failed
    return checklist


def expect_violation(path, check, detail, verdict, limits=QUICK):
    checklist = checked(path, limits)
    # What a model remembers in an attribute also fails `unchanged`.
    assert set(checklist.failed) - {"unchanged"} == {check} - {"unchanged"}, checklist.failed
    message = checklist.failed[check]
    assert detail in message and checklist.result["verdict"] == verdict
    assert "; demanded: " in message and message.isprintable()
    names = [check["name"] for check in checklist.result["checks"]]
    assert names == [name for name in CHECKS if name in names]
    assert names[: CHECKS.index(check) + 1] == CHECKS[: CHECKS.index(check) + 1]


@pytest.mark.parametrize(
    ("forward", "check", "detail", "verdict"),
    [
        (  # the first is the 1x1 image
            "torch.nn.functional.avg_pool2d(images.float(), [2, 2]).mean([2, 3])",
            *("original_size", "; also a 1x2000 image, a 2000x1 image;", "refuses_an_image"),
        ),
        *(
            (x, "original_size", f"returned {found}; it must return a", "refuses_an_image")
            for x, found in ((f"(3, {MEAN})", "tuple"), (f"{MEAN}.sum()", "a tensor of shape ()"))
        ),
        (  # needs contiguous channels
            "images.view(1, -1).float().mean(1, keepdim=True)",
            *("original_size", "for a 1x2000 image: ", "refuses_an_image"),
        ),
        ("images.amax([2, 3])", "floating_point", "torch.uint8 for a 1x1 image", "wrong_type"),
        (f"{MEAN}.to(torch.bfloat16)", "floating_point", "torch.bfloat16", "wrong_type"),
        (f"{MEAN}.repeat(1, 22)", "dimension", "66 numbers for a 1x1 image", "wrong_dimension"),
        (  # a black image makes the norm zero
            f"{MEAN} / {MEAN}.norm()",
            *("finite", "3 of 3 numbers are NaN or infinite for a black", "not_finite"),
        ),
        (  # longer for portraits
            f"{MEAN}.repeat(1, 2 if images.size(2) > images.size(3) else 1)",
            *("same_dimension", "3 for a 1x1 image, 6", "dimension_varies"),
        ),
        (
            f"{MEAN} + 0.01 * torch.rand([1, 3])",
            *("same_answer_twice", "two calls on one image differ by 0.00", "random"),
        ),
        (  # an integer divided by zero, which TorchScript leaves to the processor
            f"{MEAN} + images.size(2) % (images.size(1) - 3)",
            *("original_size", "its process ended: SIGFPE", "crash"),
        ),
        (  # a gibibyte
            f"{MEAN} + torch.ones([1024, 1024, 256]).mean()",
            *("original_size", "allocate", "out_of_memory"),
        ),
        (  # later calls agree with each other: only a fresh process shows it
            f"mean = {MEAN}\nif self.state == 0.0:\n    self.state = float(mean.sum())\n"
            "return mean / self.state",
            *("independent_of_other_images", "alone and after others differ", "depends_on_order"),
        ),
        (  # counts the changes of size
            "if images.size(2) != self.last:\n    self.state += 1.0\nself.last = images.size(2)\n"
            f"return {MEAN} + self.state",
            *("independent_of_other_images", "another differ by 2", "depends_on_order"),
        ),
        (
            f"self.state += 1.0\nreturn {MEAN}",
            *("unchanged", "changed while it answered", "changes_itself"),
        ),
    ],
)
def test_an_answer_that_breaks_the_contract_is_named(tmp_path, forward, check, detail, verdict):
    path = write_submission(tmp_path / "s.zip", toy(forward, state=0.0, last=0))
    expect_violation(path, check, detail, verdict)


def test_a_scoring_that_takes_too_long_is_stopped(submission):
    limits = Limits(threads=1, total_seconds=1e-6)
    expect_violation(submission, "torch_1_11", "more than 0 s in total", "too_slow", limits)


def test_everything_that_is_broken_is_listed(tmp_path):
    """A newer format, too many integers, and no answer to a small image."""
    content = for_1_11(toy("images[:, :, 1:].amax([2, 3]).repeat(1, 22)"), version=b"10\n")
    checklist = checked(write_zip(tmp_path / "s.zip", {"saved_model.pt": content}))
    expected = ["format_version", "original_size", "floating_point", "dimension"]
    assert list(checklist.failed) == expected
    assert checklist.result["verdict"] == "not_for_torch_1_11", "the first"
    assert "also a 320x240 image" in checklist.failed["dimension"]


def test_a_process_that_cannot_start_is_no_fault_of_the_model(submission, monkeypatch):
    def fails(*_):
        raise Violation("MemoryError", "out_of_memory")

    monkeypatch.setattr(ModelProcess, "_receive", fails)
    with pytest.raises(UserError, match=r"cannot start a process .*; free memory"):
        checked(submission, QUICK)


@pytest.mark.parametrize(
    ("names", "detail"),
    [
        ((), "0 members: none"),
        (("../saved_model.pt",), "1 members: '../saved_model.pt'"),
        ("123456", "6 members: '1', '2', '3', '4', '5', ...;"),
    ],
)
def test_an_archive_of_another_layout_is_refused(tmp_path, names, detail):
    path = write_zip(tmp_path / "s.zip", dict.fromkeys(names, b"x"))
    expect_violation(path, "zip_layout", detail, "bad_archive")


@pytest.mark.parametrize("position", [None, 50, 600])
def test_a_damaged_zip_is_refused(tmp_path, submission, position):
    content = bytearray(submission.read_bytes() if position else b"not a zip")
    content[position or 0] ^= 0xFF
    (tmp_path / "s.zip").write_bytes(content)
    expect_violation(tmp_path / "s.zip", "zip_layout", "not a readable zip archive", "bad_archive")


def test_a_file_that_is_no_torchscript_is_refused(tmp_path):
    path = write_zip(tmp_path / "s.zip", {"saved_model.pt": b"junk"})
    expect_violation(path, "format_version", "is no TorchScript archive", "no_torchscript")
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, buffer)
    path = write_zip(tmp_path / "s.zip", {"saved_model.pt": buffer.getvalue()})
    expect_violation(path, "loads", "constants.pkl", "does_not_load")


def test_a_file_for_newer_pytorch_has_its_own_verdict_and_can_be_allowed(tmp_path):
    path = write_zip(tmp_path / "s.zip", {"saved_model.pt": torchscript_bytes(MeanColour())})
    expect_violation(path, "torch_1_11", ".debug_pkl records", "not_for_torch_1_11")
    assert checked(path, torch="current").result["verdict"] == "keeps_the_contract"
