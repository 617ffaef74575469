"""score.py as a command: what it writes, prints and returns."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image
from scorer_toys import MEAN, arguments, toy, write_submission

import score
from scorer import embedding
from scorer.errors import UserError

SRC = Path(score.__file__).parent
# With None in its place `import guie` raises: the scorer must not need the package that it judges.
WITHOUT_GUIE = """
import runpy, sys
sys.modules["guie"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments):
    command = [sys.executable, "-c", WITHOUT_GUIE, str(SRC / "score.py"), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_scores_without_the_package(submission, manifest, tmp_path):
    out = tmp_path / "out" / "score.json"
    done = run(*arguments(submission, manifest, out))
    assert done.returncode == 0, done.stderr
    assert "mean: over domains, each counts once; pooled: over all queries" in done.stdout
    assert f"wrote {out}" in done.stdout
    result = json.loads(out.read_text())
    perfect = {"mmp_at_5": 1.0, "r_at_1": 1.0}
    assert result["mean"] == result["pooled"] == perfect
    assert result["domains"] == {
        "art": perfect | {"queries": 2, "queries_without_positive": 0},
        "toys": perfect | {"queries": 8, "queries_without_positive": 0},
    }
    assert result["public"]["queries"] + result["private"]["queries"] == 10
    assert (result["index"], result["dimension"], result["limit_hours"]) == ("merged", 48, 9)
    assert (result["images"], result["images_with_exif_rotation"]) == (16, 0)
    content = submission.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert result["submission"] == {"sha256": digest, "bytes": len(content)}
    assert len(result["checks"]) == 14 and all(check["passed"] for check in result["checks"])
    seconds = result["seconds_per_image"]
    assert 0 < seconds["total"] == pytest.approx(seconds["decode"] + seconds["model"])
    assert result["projected_hours"] == pytest.approx(seconds["total"] * 205_000 / 3600)
    assert result["peak_memory_mb"] > 50 and result["torch"] == torch.__version__
    assert (result["verdict"], result["runtime"]) == ("keeps_the_contract", "1.11")
    assert result["budget"]["fits"] == "yes" and result["budget"]["limit_hours"] == 9
    limits = {name: limit["how"] for name, limit in result["limits"].items() if limit["held"]}
    assert (limits["time_per_image"], limits["time"]) == ("120 s", "24 h in total")
    names = {path.name for path in out.parent.iterdir()}
    assert names == {"score.json", "score.neighbours.csv"}


def test_neighbours_explain_the_score(submission, manifest, tmp_path):
    table = pd.read_csv(manifest)
    table.loc[table["label"] == "toys/green", "label"] = "toys/red"  # now two look-alike clusters
    table.loc[0, "label"] = "art/grey"  # and a red picture that should find grey ones
    table.to_csv(manifest, index=False)
    out = tmp_path / "score.json"
    score.main(arguments(submission, manifest, out))
    rows = pd.read_csv(tmp_path / "score.neighbours.csv")
    columns = ["query", "rank", "image_path", "distance", "relevant", "counted", "submission"]
    assert list(rows.columns) == columns
    assert set(rows["submission"]) == {hashlib.sha256(submission.read_bytes()).hexdigest()}
    assert len(rows) == 10 * 5 and (rows["query"] != rows["image_path"]).all()
    assert (rows.groupby("query")["distance"].diff().dropna() >= 0).all()
    counted = rows[rows["counted"] == 1]
    recomputed = counted.groupby("query")["relevant"].mean().mean()
    result = json.loads(out.read_text())
    assert 0 < recomputed < 1
    assert result["pooled"]["mmp_at_5"] == pytest.approx(recomputed)
    assert result["pooled"]["r_at_1"] == rows[rows["rank"] == 1]["relevant"].mean()


@pytest.mark.parametrize(
    ("forward", "verdict", "line"),
    [
        (
            f"{MEAN} / (0 if images.size(2) == 77 else 1)",
            *("not_finite", "'images/toys/red_3.png': 3 of 3 numbers are NaN or infinite"),
        ),
        (
            f"self.calls += 1 if images.size(2) == 77 else 0\nreturn {MEAN}",
            *("changes_itself", "the model changed while it answered"),
        ),
    ],
)
def test_a_violation_is_one_line_and_leaves_the_checks(
    forward, verdict, line, manifest, tmp_path, capsys
):
    """The model keeps the contract until it gets an image that is 77 px high."""
    out = tmp_path / "score.json"
    Image.new("RGB", (70, 77)).save(tmp_path / pd.read_csv(manifest)["image_path"][3])
    broken = write_submission(tmp_path / "broken.zip", toy(forward, calls=0))
    with pytest.raises(SystemExit) as stopped:
        score.main(arguments(broken, manifest, out))
    assert stopped.value.code == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"VIOLATION every_image: {line}")
    assert printed.endswith(f"\nno score: {verdict}\n") and printed.count("\n") == 2
    result = json.loads(out.read_text())
    about = {"submission", "torch", "runtime", "device", "limits"}
    assert result["verdict"] == verdict and set(result) == {"verdict", "checks"} | about
    assert [check["passed"] for check in result["checks"]] == [True] * 13 + [False]
    assert [path.name for path in tmp_path.glob("*score*")] == ["score.json"]  # nothing to resume


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_stopped_scoring_resumes(how, submission, manifest, tmp_path, monkeypatch):
    """Killed: from what it saved before. Interrupted: with all that it embedded."""
    out, again = tmp_path / "score.json", tmp_path / "again.json"
    score.main(arguments(submission, manifest, again))
    decoded, done, save = embedding.decoded, [], embedding.Progress.save

    def stopped(*given):
        for image in decoded(*given):
            if len(done) == 7:
                if how == "killed":  # nothing runs any more
                    monkeypatch.setattr(embedding.Progress, "save", lambda progress: None)
                raise KeyboardInterrupt
            done.append(image)
            yield image

    with monkeypatch.context() as patch:
        patch.setattr(embedding, "decoded", stopped)
        patch.setattr(embedding, "SAVE_SECONDS", 0 if how == "killed" else 600)
        with pytest.raises(KeyboardInterrupt):
            score.main(arguments(submission, manifest, out))
    monkeypatch.setattr(embedding.Progress, "save", save)
    (tmp_path / ".score.saved_model.pt").write_bytes(b"the model that a killed scoring unpacked")
    changed = tmp_path / done[0].image_path
    os.utime(changed, ns=(0, 0))  # now another image, by its state
    score.main(arguments(submission, manifest, out))
    one, other = (json.loads(path.read_text()) for path in (out, again))
    assert (one["images_resumed"], other["images_resumed"]) == (6, 0)
    assert one["domains"] == other["domains"]
    tables = [pd.read_csv(tmp_path / f"{name}.neighbours.csv") for name in ("score", "again")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    left = {path.name for path in tmp_path.iterdir() if "score" in path.name}
    assert left == {"score.json", "score.neighbours.csv"}


def test_embeddings_of_another_submission_are_dropped(tmp_path):
    progress = embedding.Progress(tmp_path / "e.npz", "one")
    progress.save()
    assert not progress.path.exists()  # there was nothing to save
    progress.rows["image"] = [1, 2, 0.1, 0.2, True]
    progress.save()
    (found,) = embedding.Progress(progress.path, "one").rows.values()
    assert found.tolist() == [1, 2, 0.1, 0.2, 1]
    assert not embedding.Progress(progress.path, "other").rows


def test_a_fault_of_the_user_is_one_line_and_code_2(submission, manifest, tmp_path, capsys):
    done = run(*arguments(submission, tmp_path / "none.csv", tmp_path / "score.json"))
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'none.csv'}: no such file\n"
    with pytest.raises(UserError, match="--out .*: must be the name of a .json file"):
        score.main(arguments(submission, manifest, submission))
    for flag, value in (("--memory-gb", "0"), ("--memory-gb", "inf"), ("--image-seconds", "nan")):
        with pytest.raises(SystemExit):
            score.main([*arguments(submission, manifest, tmp_path / "s.json"), flag, value])
        message = f"argument {flag}: {value}: must be above 0 and at most 1,000,000"
        assert message in capsys.readouterr().err
