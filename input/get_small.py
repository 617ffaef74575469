"""Build mini-uned, the small real benchmark of seven domains, from public GitHub repositories.

python input/get_small.py
python input/get_small.py --only cars emoji
python input/get_small.py --from DIR

The result is input/small/: manifest.csv and 24,217 images, the same as those of the published results. The
script downloads six archives, about 0.7 GB, each at a fixed commit. They are kept in runs/.cache/small, and a
second run uses them again. --from reads archives that you already have, without a network.

Nothing is unpacked to disk: the files that input/small.csv.gz lists are read from the archives, and compared
with the published digest. Each domain appears only when complete, so an interrupted run continues there.
Logos are drawn with cairosvg, which needs the system's libcairo.

The licences are those of the repositories (input/README.md). The sources of cars and leaves state none.
"""

import argparse
import csv
import gzip
import hashlib
import math
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image
from tqdm import tqdm

from guie.base import errors
from guie.base.arguments import local_path
from guie.base.errors import UserError, optional_module
from guie.base.files import cache_folder, held, replacing, write_text

TABLE = Path(__file__).with_name("small.csv.gz")
HEADER = "image_path,label,domain,split,role"
MANIFEST_SHA256 = "e11dd47e76fbbe12b8fa77f4c805dc5bea53eed0ba54a9d6d6d3d9e57175105c"
SUFFIXES = (".zip", ".tar.gz")
UNFINISHED = ".{}.part"  # the folder of a domain until it is complete
SVG_PX = 128  # the size of nearly all; larger ones are drawn at it
MEMBER_BYTES = 2**28  # more than the largest file of the six repositories


@dataclass(frozen=True)
class Repository:
    """A GitHub repository at a commit."""

    name: str
    commit: str

    @property
    def stem(self) -> str:
        """The archive's file name without its suffix."""
        return f"{self.name.partition('/')[2]}-{self.commit}"

    @property
    def url(self) -> str:
        """The address of the archive."""
        return f"https://github.com/{self.name}/archive/{self.commit}.zip"


@dataclass(frozen=True)
class Domain:
    """How the images of a domain are made."""

    repository: Repository
    sources_sha256: str  # of the source files
    images_sha256: str  # of our files, which depend on the versions of Pillow and cairo
    max_px: tuple[float, float] = (math.inf, math.inf)  # of the short and the long side
    black_and_white: bool = False  # PNG; the others are JPEG
    bgr: bool = False  # the source has red and blue swapped


@dataclass(frozen=True)
class Row:
    """A line of the table: a source file, and its row of the manifest."""

    source: str  # `python/a.zip!b.png` is a file in an archive of the repository
    image_path: str
    label: str
    split: str
    role: str

    @property
    def domain(self) -> str:
        """The first part of the label."""
        return self.label.partition("/")[0]

    @property
    def line(self) -> str:
        """The row of the manifest."""
        return ",".join((self.image_path, self.label, self.domain, self.split, self.role))


GROCERIES = Repository(
    "marcusklasson/GroceryStoreDataset", "fc80ba90f803d79d0383df52c5a4ac5de99ff6fc"
)
DOMAINS = {
    "cars": Domain(
        Repository("fmejbah/car_dataset1", "2ac6920297f51277ac4e24afd231c46d35077831"),
        "98f02ecf2c993a0aae48215a11b4022706fc64b76475224fb1151d268c04fdb7",
        "b1e5de067b7bb70f8a0b0697c11281628cb1c57662c5131ab3ec1c27762d7f05",
        max_px=(96, 200),
        bgr=True,
    ),
    "produce": Domain(
        GROCERIES,
        "17e4762918906c6ffbb35932bd368e9ba410ce20eb9e7ad118101c34c72df7f2",
        "0e33d696078cd9f6e98c10994f58451ef7b0d2682231c86f225832d0be6fb3c2",
        max_px=(96, math.inf),
    ),
    "packages": Domain(
        GROCERIES,
        "b4f386d65b86b5633403c6de9db23300d313b0babfeb1c079beadebe404962a6",
        "0b2554897b65ceb03855d3516e2924833adfa08eb6e9abfdbd5daa847b1ebc93",
        max_px=(104, math.inf),
    ),
    "characters": Domain(
        Repository("brendenlake/omniglot", "057f034baf2ecb8530bc5710e5a23584d2a519cc"),
        "58afc61dcccd1b31aa963624039193a970a99cf6d957c084de49a4407a884c23",
        "36332c829b426533e65a0b45f96fd64e7b4e2c68d64340725c9bdc418e4dc904",
        black_and_white=True,
    ),
    "emoji": Domain(
        Repository("discourse/discourse-emojis", "84a48c278389fc8587e3b16021db5eb1838137c1"),
        "85ce46effd84d76f105b317f13d88f5b88fd4ba1a6c2602b5d1422c159af04ef",
        "8de7c3b0ebee3c11d2ca7244e7503ec55f1a24ecd13289b4b2440901712e1f74",
    ),
    "logos": Domain(
        Repository("devicons/devicon", "54cfe13ac10eaa1ef817a343ab0a9437eb3c2e08"),
        "deee552bacf480202896b167b8ed51d87feb1ad2810a3a206616e9260840e2bb",
        "c906a998fd7194fe9ff8d6cd3e755862ead3cf37f4c5fb93ec2c390e8df22d41",
        max_px=(112, 112),
    ),
    "leaves": Domain(
        Repository("CharlesXin/Leaf", "b40332e333c3aa7e5e800bb9633cbb96b357d63c"),
        "15b133cd8347626b6a81d8051839a66f5b418eab8df20a28d175a00e269405d7",
        "c341b708921139a504927aadd9b55c43618a06f3626093c60370715ea7117c3f",
        max_px=(96, 256),
        black_and_white=True,
    ),
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    only = f"domains to build (default: all): {', '.join(DOMAINS)}"
    add("--only", nargs="+", choices=DOMAINS, default=list(DOMAINS), metavar="DOMAIN", help=only)
    mirror = "folder with the archives, <repository>-<commit>.zip or .tar.gz; downloads nothing"
    add("--from", type=Path, dest="mirror", metavar="DIR", help=mirror)
    add("--out", type=local_path, default=Path("input/small"), help="default: input/small")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Build the domains that are not there yet, and write the manifest of those that are.

    Raises UserError if an archive cannot be had or has other content, cairosvg is missing, the folder holds
    files of others, or another process is building.
    """
    args = parse_args(argv)
    rows = read_table(TABLE)
    images = args.out / "images"
    with held(cache_folder() / "small.lock", "another process builds mini-uned", "wait for it"):
        check_folder(args.out, rows)
        missing = [name for name in DOMAINS if name in args.only and not (images / name).exists()]
        if "logos" in missing:
            cairo()
        # A missing archive is named before the first is read.
        local = {n: in_mirror(DOMAINS[n].repository, args.mirror) for n in missing if args.mirror}
        for name in missing:
            archive = local.get(name) or downloaded(DOMAINS[name].repository)
            build(name, archive, [row for row in rows if row.domain == name], images)
        built = [row for row in rows if (images / row.domain).exists()]
        write_text(args.out / "manifest.csv", manifest(built))
    print(f"{args.out / 'manifest.csv'}: {counts(built)}")


def read_table(path: Path) -> list[Row]:
    """Read the table of source files. Raises UserError if it is not the published one."""
    rows, of_label = [], Counter[str]()
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            label = line["label"]
            suffix = ".png" if DOMAINS[label.partition("/")[0]].black_and_white else ".jpg"
            image_path = f"images/{label}/{of_label[label]:03d}{suffix}"
            rows.append(Row(line["source"], image_path, label, line["split"], line["role"]))
            of_label[label] += 1
    found = hashlib.sha256(manifest(rows).encode()).hexdigest()
    if found != MANIFEST_SHA256:
        raise UserError(
            f"{path}: its manifest has SHA-256 {found}, expected {MANIFEST_SHA256}; restore the file"
        )
    return rows


def manifest(rows: Iterable[Row]) -> str:
    """Return the text of the manifest."""
    return "".join(f"{line}\n" for line in (HEADER, *(row.line for row in rows)))


def counts(rows: Sequence[Row]) -> str:
    """Describe how many images and classes there are, by split."""
    labels = {row.label: row.split for row in rows}
    images, classes = Counter(row.split for row in rows), Counter(labels.values())
    parts = (
        f"{split} {images[split]:,} of {classes[split]:,}" for split in ("train", "val", "test")
    )
    return f"{len(rows):,} images of {len(labels):,} classes ({', '.join(parts)})"


def check_folder(out: Path, rows: Sequence[Row]) -> None:
    """Raise UserError if the folder holds anything but complete domains and their manifest."""
    expected = {row.image_path for row in rows}
    found = {p.relative_to(out).as_posix() for p in out.rglob("*") if not p.is_dir()}
    unfinished = tuple(f"images/{UNFINISHED.format(name)}/" for name in DOMAINS)
    others = found - expected - {"manifest.csv"}
    if foreign := sorted(name for name in others if not name.startswith(unfinished)):
        raise UserError(
            f"{out}: holds {foreign[0]!r}, which this script did not make; move it, or give another"
            " --out"
        )
    for path in (out / "images" / name for name in DOMAINS):
        own = {name for name in expected - found if name.startswith(f"images/{path.name}/")}
        if own and path.exists():
            raise UserError(
                f"{path}: {len(own):,} files are missing, such as {min(own)}; remove the folder to"
                " build it again"
            )
    table = out / "manifest.csv"
    if table.exists():
        known = {HEADER, *(row.line for row in rows)}
        if not known.issuperset(table.read_text(encoding="utf-8", errors="replace").splitlines()):
            raise UserError(f"{table}: not written by this script; move it, or give another --out")


def cairo() -> Any:
    """Return cairosvg. Raises UserError if it, or the system's cairo, is missing."""
    user = "drawing the logos (--only builds other domains without it)"
    try:
        return optional_module("cairosvg", user, "small")
    except OSError:
        raise UserError(
            f"cairosvg finds no libcairo, which {user} needs: on Debian, apt-get install libcairo2"
        ) from None


def in_mirror(repository: Repository, folder: Path) -> Path:
    """Return the archive in a folder. Raises UserError if it is not there."""
    paths = [folder / f"{repository.stem}{suffix}" for suffix in SUFFIXES]
    for path in paths:
        if path.is_file():
            return path
    raise UserError(
        f"{paths[0]}: no such archive, nor {paths[1].name}; download {repository.url} to it"
    )


def downloaded(repository: Repository) -> Path:
    """Return the archive in the cache, downloaded if it is not there. Raises UserError."""
    from http.client import HTTPException

    from guie.base.network import stream
    from guie.data.archives import damage_as_user_error

    path = cache_folder() / "small" / f"{repository.stem}.zip"
    if path.is_file():
        return path
    with replacing(path) as temporary:
        try:
            stream(repository.url, temporary)
        except (OSError, HTTPException) as error:
            raise UserError(
                f"{repository.url}: download failed: {error}; try again, or download it elsewhere and"
                " give its folder with --from"
            ) from None
        with damage_as_user_error(temporary):
            zipfile.ZipFile(temporary).close()  # reads the index at the end: the file is whole
    return path


def build(name: str, archive: Path, rows: Sequence[Row], images: Path) -> None:
    """Check the source files of a domain, draw its images, and rename their folder into place."""
    domain = DOMAINS[name]
    check_sources(name, archive, rows)
    unfinished = images / UNFINISHED.format(name)
    shutil.rmtree(unfinished, ignore_errors=True)  # what an interrupted run has left
    of_source = {row.source: row for row in rows}
    digests = {}
    sources = read_sources(archive, of_source.keys())
    for source, content in tqdm(sources, f"draw {name}", len(rows), disable=None):
        image_path = of_source[source].image_path
        path = unfinished / Path(image_path).relative_to("images", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(source, content, domain).save(path, quality=88, optimize=True)
        digests[image_path] = hashlib.sha256(path.read_bytes()).hexdigest()
    unfinished.rename(images / name)
    same = joint_digest(digests) == domain.images_sha256
    files = "the published files" if same else "of the published sources, but encoded otherwise"
    print(f"{name}: {counts(rows)}; {files}")


def check_sources(name: str, archive: Path, rows: Sequence[Row]) -> None:
    """Raise UserError unless the archive has all source files with the published content."""
    sources = {row.source for row in rows}
    contents = tqdm(read_sources(archive, sources), f"check {name}", len(rows), disable=None)
    digests = {source: hashlib.sha256(content).hexdigest() for source, content in contents}
    repository = DOMAINS[name].repository
    remedy = f"remove it and download {repository.url}"
    absent = sorted(sources - digests.keys())
    if absent:
        raise UserError(
            f"{archive}: holds {len(digests):,} of the {len(sources):,} files of {name}, and not"
            f" {absent[0]}; {remedy}"
        )
    found = joint_digest(digests)
    if found != DOMAINS[name].sources_sha256:
        raise UserError(
            f"{archive}: the files of {name} have SHA-256 {found}, expected"
            f" {DOMAINS[name].sources_sha256}; {remedy}"
        )


def joint_digest(digests: dict[str, str]) -> str:
    """Return one digest for many files, whatever their order."""
    lines = (f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_sources(archive: Path, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (source, content) of the wanted files in the archive's order.

    Raises UserError if it is damaged or has a member outside its folder, too large, or a link for a file.
    """
    from guie.data.archives import damage_as_user_error, fault_of_member, members_of

    inner: dict[str, list[str]] = {}  # path of an archive in the archive -> names in it
    for source in wanted:
        path, _, name = source.partition("!")
        inner.setdefault(path, []).extend([name] if name else [])
    with damage_as_user_error(archive):
        for member, open_member in members_of(archive):
            path = "/".join(PurePosixPath(member.name).parts[1:])  # without <repository>-<commit>/
            fault = fault_of_member(member, MEMBER_BYTES)
            opened = open_member() if path in inner and member.isreg() else None
            if path in inner and opened is None:
                fault = "not a regular file"
            if fault:
                raise UserError(f"{archive}: not read: {member.name!r}: {fault}")
            if opened is None:
                continue
            with opened as file:
                content = file.read(MEMBER_BYTES)
            if not inner[path]:
                yield path, content
                continue
            with zipfile.ZipFile(BytesIO(content)) as nested:
                for name in set(inner[path]).intersection(nested.namelist()):
                    with nested.open(name) as file:
                        yield f"{path}!{name}", file.read(MEMBER_BYTES)


def draw(source: str, content: bytes, domain: Domain) -> Image.Image:
    """Return the image of a source file: on white, within the domain's size."""
    if source.endswith(".svg"):
        content = cairo().svg2png(bytestring=content, output_width=SVG_PX, output_height=SVG_PX)
    with Image.open(BytesIO(content)) as opened:
        image = opened.convert("L" if domain.black_and_white else "RGBA")
    if not domain.black_and_white:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image).convert("RGB")
    if domain.bgr:
        image = Image.merge("RGB", image.split()[::-1])
    short_px, long_px = domain.max_px
    scale = min(1, short_px / min(image.size), long_px / max(image.size))
    if scale == 1:
        return image
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    errors.run(main)
