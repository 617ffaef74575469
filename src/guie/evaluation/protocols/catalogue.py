"""List what can be scored: protocols by name, with their sources, and ways to combine embeddings."""

from dataclasses import replace

from guie.base.errors import UserError
from guie.evaluation.metrics import STANDARD
from guie.evaluation.protocols.base import Headline, Index, Part, Protocol

DRAWS = 2000  # of the bootstrap
INDEXES: tuple[Index, ...] = ("merged", "separate")
UNED = ("r_at_1", "mmp_at_5", "map_at_100")
LEVELS = ("easy", "medium", "hard")  # keys of `guie.evaluation.graded.PROTOCOLS`
GRADED = tuple(
    f"{level}_{key}" for level in LEVELS for key in ("ap", "p_at_1", "p_at_5", "p_at_10")
)
PUMA = ("r_at_1", "map_at_r", "r_precision")
# Depths of Recall@k that each data set's papers report.
RECALLS = {
    "cub": (1, 2, 4, 8),
    "sop": (1, 10, 100, 1000),
    "inshop": (1, 10, 20, 30),
    "vehicleid": (1, 5),
}

QUIRKS = {
    "round": "each domain is rounded to 3 decimals before the mean, as in UnED's code",
    "query_counts": "R counts the query itself, so that nothing reaches 1, as in PUMA's code",
}
JOINS = {
    "oracle": "the query's domain picks the specialist, which embeds query and index (UnED)",
    "mean": "the mean of their unit vectors (PUMA)",
    "concat": "concatenated unit vectors; with --reduce, the unification paper's method",
}
# first: the first dimensions; for a concatenated ensemble its first members (DREML's prefixes)
REDUCTIONS = ("pca", "pca-whitened", "random", "first")
FITTED = REDUCTIONS[:2]  # on train images


def _by_recall(name: str, title: str, source: str, clusters: bool = False) -> Protocol:
    """Return a protocol that scores each data set separately by Recall@k."""
    part = Part("separate", "separate", ("r_at_1",), by="dataset", clusters=clusters)
    part = replace(part, default_recalls=RECALLS[name])
    keys = {k: f"recall_at_{k}" if k > 1 else "r_at_1" for k in RECALLS[name]}
    headlines = tuple(Headline(f"R@{k}", "separate", "mean", key) for k, key in keys.items())
    return Protocol(name, title, source, (part,), headlines)


_VEHICLEID = _by_recall(
    "vehicleid",
    "PKU VehicleID: Recall@1, 5 of its small, medium and large test set",
    "Liu et al., CVPR 2016; every test image is query and index, as in arXiv 2003.03701, or"
    " one drawn image a vehicle is the index, as in fast-reid",
)
_RE_IDENTIFICATION = replace(_VEHICLEID.parts[0], name="re-identification", gallery_draws=10)
_ALL = (
    *(
        Protocol(
            name=index,
            title=f"every metric over the {index} index",
            source="design of this repository",
            parts=(Part(index, index, STANDARD),),
            headlines=(
                Headline("R@1", index, "mean", "r_at_1"),
                Headline("mMP@5", index, "mean", "mmp_at_5"),
            ),
        )
        for index in INDEXES
    ),
    Protocol(
        name="challenge",
        title="Google Universal Image Embedding challenge: mMP@5 over all queries, one index",
        source="kaggle.com/c/google-universal-image-embedding; metrics.py of"
        " google-research/universal_embedding_challenge",
        parts=(Part("merged", "merged", ("mmp_at_5", "r_at_1"), public_and_private=True),),
        headlines=(
            Headline("mMP@5", "merged", "pooled", "mmp_at_5"),
            Headline("mMP@5, public", "merged", "public", "mmp_at_5"),
            Headline("mMP@5, private", "merged", "private", "mmp_at_5"),
        ),
    ),
    Protocol(
        name="uned",
        title="UnED: balanced mean over domains, merged and separate index",
        source="Ypsilantis et al., ICCV 2023, sections 3.2, A.1, A.3",
        parts=(Part("merged", "merged", UNED), Part("separate", "separate", UNED)),
        headlines=(
            Headline("R@1", "merged", "mean", "r_at_1"),
            Headline("mMP@5", "merged", "mean", "mmp_at_5"),
            Headline("mAP@100", "merged", "mean", "map_at_100"),
            Headline("R@1, separate", "separate", "mean", "r_at_1"),
            Headline("mMP@5, separate", "separate", "mean", "mmp_at_5"),
        ),
        quirks=("round",),
    ),
    Protocol(
        name="puma",
        title="PUMA: unified R@1 on merged sets, harmonic means of separate ones",
        source="Kim et al., WACV 2025, arXiv 2309.08944, section 5.1",
        parts=(
            Part("unified", "merged", ("r_at_1",), by="dataset"),
            Part(
                "separate",
                "separate",
                PUMA,
                by="dataset",
                recalls=RECALLS,
                default_recalls=(1, 2, 4, 8),
            ),
        ),
        headlines=(
            Headline("unified R@1", "unified", "pooled", "r_at_1"),
            Headline("harmonic R@1", "separate", "harmonic", "r_at_1"),
            Headline("harmonic MAP@R", "separate", "harmonic", "map_at_r"),
            Headline("harmonic RP", "separate", "harmonic", "r_precision"),
        ),
        quirks=("query_counts",),
        note="its code counts label collisions between data sets as hits; labels are global here",
    ),
    Protocol(
        name="unification",
        title="Unifying specialists: Recall@k over the fused evaluation sets, and of each alone",
        source="Feng et al., arXiv 2003.03701, section 5, Tables 1 to 4",
        parts=(
            Part("fused", "fused", ("r_at_1",), default_recalls=(1, 2, 4, 8)),
            Part("separate", "separate", ("r_at_1",), default_recalls=(1, 2, 4, 8)),
        ),
        headlines=(
            Headline("R@1, fused", "fused", "mean", "r_at_1"),
            Headline("R@1, separate", "separate", "mean", "r_at_1"),
        ),
    ),
    _by_recall(
        "cub",
        "CUB-200-2011 and Cars-196: Recall@1, 2, 4, 8 and NMI, each data set by itself",
        "Oh Song et al., CVPR 2016; DREML, Tables 1 and 2",
        clusters=True,
    ),
    _by_recall(
        "sop",
        "Stanford Online Products: Recall@1, 10, 100, 1000",
        "Oh Song et al., CVPR 2016",
    ),
    _by_recall(
        "inshop",
        "DeepFashion In-Shop: Recall@1, 10, 20, 30, queries against the gallery",
        "Liu et al., CVPR 2016",
    ),
    replace(
        _VEHICLEID,
        parts=(*_VEHICLEID.parts, _RE_IDENTIFICATION),
        headlines=(
            *_VEHICLEID.headlines,
            Headline("R@1, re-id", "re-identification", "mean", "r_at_1"),
            Headline("R@5, re-id", "re-identification", "mean", "recall_at_5"),
        ),
        note="small, medium, large if subsets.csv is next to the manifest; else all its images",
        subsets=("small", "medium", "large"),
    ),
    Protocol(
        name="gldv2",
        title="Google Landmarks v2 retrieval: mAP@100 over all queries with a solution",
        source="Weyand et al., CVPR 2020; metrics.py of tensorflow/models, delf",
        parts=(Part("merged", "merged", ("map_at_100", "r_at_1")),),
        headlines=(Headline("mAP@100", "merged", "pooled", "map_at_100"),),
    ),
    Protocol(
        name="revisited",
        title="Revisited Oxford and Paris: mAP and mP@1, 5, 10, easy, medium and hard, junk ignored",
        source="Radenovic et al., CVPR 2018, arXiv 1803.11285; revisitop's code",
        parts=(Part("separate", "separate", GRADED, by="dataset", graded=True),),
        headlines=tuple(
            Headline(f"{what}, {level}", "separate", "mean", f"{level}_{key}")
            for level in LEVELS
            for what, key in (("mAP", "ap"), ("mP@10", "p_at_10"))
        ),
        note="needs relevance.csv next to the manifest: query, image, grade (easy, hard or junk)",
    ),
    Protocol(
        name="met",
        title="Met: GAP over all queries, distractors too, GAP- without them, accuracy",
        source="Ypsilantis et al., NeurIPS 2021, arXiv 2202.01747; nikosips/met",
        parts=(Part("separate", "separate", ("r_at_1",), recognition=True),),
        headlines=(
            Headline("GAP", "separate", "mean", "gap"),
            Headline("GAP-", "separate", "mean", "gap_minus"),
            Headline("ACC", "separate", "mean", "accuracy"),
        ),
        note="one neighbour, its similarity the confidence; distractors: queries without a positive",
    ),
    Protocol(
        name="ilias",
        title="ILIAS: mAP@1k and recall@1k over image and text queries",
        source="ILIAS, CVPR 2025; github.com/ilias-vrg/ilias",
        parts=(Part("merged", "merged", ("map_at_1000", "found_at_1000"), by="dataset"),),
        headlines=(
            Headline("mAP@1k", "merged", "pooled", "map_at_1000"),
            Headline("recall@1k", "merged", "pooled", "found_at_1000"),
        ),
        note="image and text queries by themselves, the latter as data set `texts`; pooled: over both",
    ),
)
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}


def protocol_of(name: str) -> Protocol:
    """Return the protocol of that name. Raises UserError if it is unknown."""
    if name not in PROTOCOLS:
        raise UserError(f"--protocol {name}: unknown; known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
