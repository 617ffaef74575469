"""mteb runs our models on a task of images drawn here, and what it prints beside what we print."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

mteb = pytest.importorskip("mteb", reason="make judges has it")

import torch
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.types import PromptType
from PIL import ExifTags, Image

from clustered import clustered, ours, positives
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.data.manifest import Manifest, Sidecar, load_manifest
from guie.evaluation.mteb import ManifestTask, RunEncoder
from guie.models import open_model
from guie.models.opening import composed
from guie.rows.embedding import embed_files
from tiny_runs import tiny_run

DEPTHS = (1, 3, 5, 10, 20, 100)  # of mteb's that fit
ROUNDED = {"rel": 0, "abs": 0.51e-5}  # mteb rounds means to 5 decimals


class Recorder(RunEncoder):
    """Keeps what it gives to mteb, by the image's id."""

    def __init__(self, model):
        super().__init__(model)
        self.given = {}

    def encode(self, inputs, **settings):
        emb_ND = super().encode(inputs, **settings)
        self.given |= dict(zip(inputs.dataset["id"], emb_ND, strict=True))
        return emb_ND


class Known(AbsEncoder):
    """Embeddings that are there already, row n for the image `n.jpg`."""

    def __init__(self, emb_TD):
        self.emb_TD = emb_TD
        self.mteb_model_meta = ModelMeta.create_empty({"modalities": ["image"]})

    def encode(self, inputs, **settings):
        return self.emb_TD[[int(name.removesuffix(".jpg")) for name in inputs.dataset["id"]]]


class FirstSkipped(ManifestTask):
    """As mteb's CUB, Cars, SOP, RP2K and Met are: the best answer is dropped, whatever it is."""

    ignore_identical_ids = False
    skip_first_result = True


def judged(encoder, task):
    """The scores that mteb gives to the one split of a task."""
    results = mteb.evaluate(
        encoder, task, cache=None, encode_kwargs={"batch_size": 16}, show_progress_bar=False
    )
    ((scores,),) = results.task_results[0].scores.values()
    return scores


def task_of(table, tmp_path, kind=ManifestTask):
    """A table of images that nobody opens as a task."""
    path = tmp_path / "known.csv"
    return kind(Manifest(table.assign(split="test"), tmp_path, path, Sidecar()), "test")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [tiny_run(folder / name, moved=0.05) for name in ("one", "other")]


@pytest.fixture(scope="module", params=["a run", "two side by side", "a library's model"])
def model(request, runs):
    if request.param == "a run":
        return open_model(runs[0])
    if request.param == "a library's model":
        torch.manual_seed(0)  # it has random weights
        return open_model("open_clip:guie-tiny", 32)
    return composed([open_model(run) for run in runs])


def test_a_model_is_judged_by_the_embeddings_of_embed_py(model, toy_manifest):
    manifest = load_manifest(toy_manifest)
    encoder = Recorder(model)
    scores = judged(encoder, ManifestTask(manifest, "test"))
    table = manifest.split("test")
    files = [manifest.file(path) for path in table["image_path"]]
    settings = {"batch_size": 16, "workers": 0}
    emb_TD = embed_files(make_accelerator(), model.embedder, model.preprocess, files, **settings)
    given_TD = np.stack([encoder.given[path] for path in table["image_path"]])
    np.testing.assert_allclose(given_TD, emb_TD, rtol=0, atol=1e-6)  # in other batches
    # mteb multiplies by itself: near ties swap on some processors
    assert_equal(scores, emb_TD, table, {"rel": 0, "abs": 1e-4})
    assert 0.05 < scores["hit_rate_at_1"] < scores["hit_rate_at_20"] < 1


@pytest.mark.parametrize("apart", [False, True], ids=["query in the index", "index apart"])
@pytest.mark.parametrize("noise", [0.5, 2.0], ids=["easy", "hard"])
def test_known_embeddings_score_alike(noise, apart, tmp_path):
    emb_TD, table = clustered(noise, apart)
    assert_equal(judged(Known(emb_TD), task_of(table, tmp_path)), emb_TD, table)


def assert_equal(scores, emb_TD, table, close=ROUNDED):
    """Hit rate is our Recall@k; with its denominators, their mAP@k and recall are ours."""
    keys = [f"{name}_at_{k}" for name in ("recall", "found", "map") for k in DEPTHS]
    found, values = ours(emb_TD, table, "r_at_1", *keys)
    n_Q = positives(table)
    n_Q = n_Q[n_Q > 0]
    values = values.dropna()
    assert found["r_at_1"] == pytest.approx(scores["precision_at_1"], **close)
    for k in DEPTHS:
        assert found[f"recall_at_{k}"] == pytest.approx(scores[f"hit_rate_at_{k}"], **close), k
        share_Q = np.minimum(n_Q, k) / n_Q  # ours divide by the positives that fit, theirs by all
        for key, name in ((f"map_at_{k}", "map"), (f"found_at_{k}", "recall")):
            peer = scores[f"{name}_at_{k}"]
            assert (values[key] * share_Q).mean() == pytest.approx(peer, **close), key
            if n_Q.max() <= k:
                assert found[key] == pytest.approx(peer, **close), key


def test_its_map_at_k_of_a_perfect_embedding_is_below_one(tmp_path):
    emb_TD, table = clustered(0.0)
    scores = judged(Known(emb_TD), task_of(table, tmp_path))
    found, _ = ours(emb_TD, table, "map_at_5")
    assert found["map_at_5"] == 1.0
    assert scores["map_at_5"] < 0.6
    assert scores["accuracy"] == scores["recall_at_1"] < scores["hit_rate_at_1"] == 1.0


def test_queries_without_a_positive_are_left_out(tmp_path):
    emb_TD, table = clustered(1.0)
    table.loc[table["label"].drop_duplicates().index[:3], "label"] = ["a/x", "a/y", "a/z"]
    assert_equal(judged(Known(emb_TD), task_of(table, tmp_path)), emb_TD, table)


def test_labels_are_shared_where_any_is(tmp_path):
    emb_TD, table = clustered(1.0)
    table.loc[::5, "label"] += "|a/15"
    scores = judged(Known(emb_TD), task_of(table, tmp_path))
    found, _ = ours(emb_TD, table, "r_at_1", "recall_at_5")
    assert found["r_at_1"] == pytest.approx(scores["hit_rate_at_1"], **ROUNDED)
    assert found["recall_at_5"] == pytest.approx(scores["hit_rate_at_5"], **ROUNDED)


def test_dropping_the_first_result_is_masking_only_where_the_query_is_found_first(tmp_path):
    """So do its tasks on CUB, Cars, SOP, RP2K and Met; we mask the query by its id."""
    emb_TD, table = clustered(1.0)
    found, _ = ours(emb_TD, table, "r_at_1")
    scores = judged(Known(emb_TD), task_of(table, tmp_path, FirstSkipped))
    assert found["r_at_1"] == pytest.approx(scores["hit_rate_at_1"], **ROUNDED)
    emb_TD, table = clustered(1.0, apart=True)
    found, _ = ours(emb_TD, table, "r_at_1")
    scores = judged(Known(emb_TD), task_of(table, tmp_path, FirstSkipped))
    assert abs(found["r_at_1"] - scores["hit_rate_at_1"]) > 0.02


def test_ties_go_by_name_there_and_by_row_here(tmp_path):
    """Later names first, as trec_eval has it."""
    table = pd.DataFrame({"image_path": ["0.jpg", "1.jpg", "2.jpg"], "domain": "a"})
    table = table.assign(label=["a/1", "a/1", "a/2"], role=["query", "index", "index"])
    emb_TD = np.eye(2, dtype=np.float32)[[0, 0, 0]]
    assert ours(emb_TD, table, "r_at_1")[0]["r_at_1"] == 1.0
    assert judged(Known(emb_TD), task_of(table, tmp_path))["hit_rate_at_1"] == 0.0


def test_a_split_without_a_positive_is_no_task(tmp_path):
    _, table = clustered(1.0)
    with pytest.raises(UserError, match="no query of split test has a positive"):
        task_of(table.assign(label=table["image_path"]), tmp_path)


@pytest.mark.parametrize(
    ("name", "asked"), [("CIRRIT2IRetrieval", "image and text"), ("Flickr30kT2IRetrieval", "text")]
)
def test_texts_are_refused(runs, name, asked):
    encoder = RunEncoder(open_model(runs[0]))
    task = mteb.get_task(name)
    settings = {"hf_split": "test", "hf_subset": "default", "prompt_type": PromptType.query}
    with pytest.raises(UserError, match=f"{name}: needs embeddings of {asked}; .* only images"):
        encoder.encode(None, task_metadata=task.metadata, **settings)


def test_results_are_kept_by_name_and_by_what_makes_the_embedding(runs):
    metas = [RunEncoder(open_model(run)).mteb_model_meta for run in (*runs, runs[0])]
    assert [meta.name for meta in metas] == ["guie/one", "guie/other", "guie/one"]
    assert metas[0].revision == metas[2].revision != metas[1].revision
    assert metas[0].embed_dim == 16
    library = open_model("open_clip:guie-tiny", 32)
    assert RunEncoder(library).mteb_model_meta.name == "guie/open_clip-guie-tiny"


def test_pictures_are_turned_by_their_exif_tag(runs, tmp_path):
    """By mteb's loader and by `decode: seen`; the challenge's scorer leaves them lying (`host`)."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    pixels_HWC = np.random.default_rng(0).integers(256, size=(24, 48, 3), dtype=np.uint8)
    for name, tag in (("0.jpg", exif), ("1.jpg", Image.Exif())):
        Image.fromarray(pixels_HWC).save(tmp_path / name, exif=tag)
    table = pd.DataFrame({"image_path": ["0.jpg", "1.jpg"], "domain": "a"})
    table = table.assign(label="a/1", role="both")
    model = open_model(runs[0])
    encoder = Recorder(model)
    judged(encoder, task_of(table, tmp_path))
    files = [tmp_path / "0.jpg", tmp_path / "1.jpg"]
    embed = partial(
        embed_files, make_accelerator(), model.embedder, model.preprocess, files, workers=0
    )
    seen_TD, lying_TD = embed(), embed(decode="host")
    for name, seen_D in zip(("0.jpg", "1.jpg"), seen_TD, strict=True):
        np.testing.assert_allclose(encoder.given[name], seen_D, atol=1e-6)
    np.testing.assert_allclose(lying_TD[0], lying_TD[1], atol=1e-6)
    assert np.abs(seen_TD[0] - lying_TD[0]).max() > 1e-3
