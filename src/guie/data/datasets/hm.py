"""H&M Personalized Fashion Recommendations: articles of a shop; articles that differ in colour share a
product.

`articles.csv` (article_id with its leading 0, product_code, ...), images `images/010/<article>.jpg`
by the first three digits. Not every article has an image.
https://www.kaggle.com/competitions/h-and-m-personalized-fashion-recommendations/data.
"""

from __future__ import annotations

from pathlib import Path

from guie.data.datasets.base import Dataset, Listing, images, listing, present
from guie.data.datasets.reading import read_columns


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return articles with an image in the order of the list; the class is the product_code."""
    rows = read_columns(folder / "articles.csv", ("article_id", "product_code"))
    article = rows["article_id"].str.zfill(10)
    path = "images/" + article.str[:3] + "/" + article + ".jpg"
    there = present(path, files)
    return Listing(listing(path[there], rows.loc[there, "product_code"], "train"))


HM = Dataset(
    name="hm",
    title="H&M",
    domain="clothing",
    folders=("hm", "hm_personalized_fashion", "h-and-m-personalized-fashion-recommendations"),
    markers=("articles.csv",),
    homepage="https://www.kaggle.com/competitions/h-and-m-personalized-fashion-recommendations",
    licence="the competition's rules: non-commercial",
    read=read,
    expected=(
        images("train", 100_000, 105_542, source="105,542 articles, a few without an image"),
    ),
)
