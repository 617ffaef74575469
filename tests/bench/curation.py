"""What curation costs: the table at UnED's size, prints of an image, near-duplicates of a million.

python tests/bench/curation.py [table] [images] [hashes] [--rows 2830000] [--classes 316446]
                               [--images 300] [--side 500] [--hashes 1000000] [--sample 500]

Everything is drawn, so it needs no data. Each part runs in a process of its own, whose peak memory
is its own. `table` reads a manifest, applies every rule on class sizes, splits and writes. `images`
is one worker, against plain decoding of the same JPEGs by Pillow. `hashes` searches as cleaning
does, and holds a sample of the answers against counting bits by numpy.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from guie.config.data import OversampleConfig
from guie.curation.classes import cap_large, drop_rare, oversample, split_validation
from guie.curation.duplicates.candidates import close_pairs
from guie.data.image_checks.decoding import verify
from guie.data.image_checks.hashes import fingerprints, pixel_digest
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest, save_manifest

PARTS = ("table", "images", "hashes")
SIZES = ("rows", "classes", "images", "side", "hashes", "sample")
DOMAINS = ("landmarks", "nature", "food", "products", "art", "retail", "clothes", "cars")
MIN_IMAGES, MAX_IMAGES = 3, 100
OVERSAMPLE = OversampleConfig(target=20)
RADIUS_BITS = 10
PLANTED_BITS = 12  # neighbours are planted at 0 to so many bits
FULL = 1_000_000  # hashes
BITS_SET = np.array([word.bit_count() for word in range(2**16)], np.uint8)


def draw_table(rows: int, classes: int) -> pd.DataFrame:
    """Train rows whose classes are of very different size, each of one image at least."""
    rng = np.random.default_rng(0)
    share = rng.lognormal(sigma=1.5, size=classes)
    more = rng.choice(classes, size=rows - classes, p=share / share.sum())
    number = rng.permutation(np.concatenate([np.arange(classes), more]))
    domain = pd.Series(np.array(DOMAINS, object)[number % len(DOMAINS)])
    image = pd.Series(np.arange(rows)).map("{:08d}".format)
    return pd.DataFrame(
        {
            "image_path": domain + "/images/" + image.str[:3] + "/" + image + ".jpg",
            "label": domain + "/" + pd.Series(number).astype(str),
            "domain": domain,
            "split": "train",
            "role": "train",
            "width": rng.integers(200, 1000, rows),
            "height": rng.integers(200, 1000, rows),
        }
    )


def draw_images(folder: Path, count: int, side_px: int) -> list[str]:
    """JPEG files of random pictures, 4:3 with `side_px` the longer side.

    Detail is as in photographs: what is simpler to decode would make all else look slow.
    """
    rng = np.random.default_rng(0)
    width, height = side_px, side_px * 3 // 4
    frequency_HW = np.hypot(
        *np.meshgrid(np.fft.fftfreq(height), np.fft.rfftfreq(width), indexing="ij")
    )
    frequency_HW[0, 0] = np.inf
    names = [f"{number}.jpg" for number in range(count)]
    for name in names:
        noise_HWC = rng.normal(size=(height, width, 3))
        spectrum_HWC = np.fft.rfft2(noise_HWC, axes=(0, 1)) / frequency_HW[..., None]
        grey_HWC = np.fft.irfft2(spectrum_HWC, (height, width), axes=(0, 1))
        grey_HWC = 128 + 50 * grey_HWC / grey_HWC.std()
        pixels_HWC = grey_HWC.clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels_HWC).save(folder / name, quality=90)
    return names


def draw_hashes(count: int) -> np.ndarray:
    """Random 64-bit hashes; from the end on, each differs in a few bits from its mirror place."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, count, dtype=np.uint64)
    for number in range(min(count // 2, 10_000)):
        bits = rng.choice(64, size=number % (PLANTED_BITS + 1), replace=False)
        hashes[-1 - number] = hashes[number] ^ np.uint64(sum(1 << int(bit) for bit in bits))
    return hashes


def measure_table(args: argparse.Namespace, folder: Path) -> None:
    """`folder` holds the drawn manifest, in both formats."""
    print(f"{args.rows:,} rows, {args.classes:,} classes")
    print(f"{'':<24}{'seconds':>10}{'of CPU':>10}{'peak GB so far':>16}")
    spent = {"csv": np.zeros(2), "parquet": np.zeros(2)}

    def step(name: str, make: Callable[[], object], suffixes: tuple[str, ...]) -> object:
        began = now_s()
        made = make()
        taken = now_s() - began
        for suffix in suffixes:
            spent[suffix] += taken
        print(f"{name:<24}{taken[0]:>10.1f}{taken[1]:>10.1f}{peak_gb():>16.2f}")
        return made

    for suffix in spent:
        source = folder / f"drawn.{suffix}"
        table = step(f"load {suffix}", lambda s=source: load_manifest(s).table, (suffix,))
    both = tuple(spent)
    table = step("min", lambda: drop_rare(table, MIN_IMAGES), both)
    table = step("cap", lambda: cap_large(table, MAX_IMAGES, seed=0), both)
    table = step("split", lambda: split_validation(table, 0.1, seed=0), both)
    table = step("oversample", lambda: oversample(table, OVERSAMPLE), both)
    for suffix in spent:
        path = folder / f"mix.{suffix}"
        step(f"write {suffix}", lambda p=path: save_manifest(table, p), (suffix,))
    for suffix, taken in spent.items():
        print(f"{'all, ' + suffix:<24}{taken[0]:>10.1f}{taken[1]:>10.1f}")
    print(f"{len(table):,} rows are left; {(table['split'] == 'val').mean():.1%} of them val")


def now_s() -> np.ndarray:
    """Wall clock and CPU time of all threads: on a busy machine only the second compares."""
    return np.array([time.perf_counter(), time.process_time()])


def peak_gb() -> float:
    """Linux's account of this process; rusage would count the parent's memory too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e9


def measure_images(args: argparse.Namespace, folder: Path) -> None:
    names = draw_images(folder, args.images, args.side)

    def hashed(path: Path) -> Image.Image:
        image = open_as_seen(path)
        pixel_digest(image)
        return image

    def plain() -> None:
        for name in names:  # kept in a list, the pictures would take new memory, which is slow
            Image.open(folder / name).convert("RGB")

    ways = {
        "plain decoding": plain,
        "decode check": lambda: verify(names, folder, open_as_seen, 1, "check"),
        "and content hash": lambda: verify(names, folder, hashed, 1, "content"),
        "and perceptual hashes": lambda: fingerprints(names, folder, open_as_seen, 1, "prints"),
    }
    taken = {name: [] for name in ways}
    for _ in range(5):  # in turn, so that all meet the same machine
        for name, way in ways.items():
            began = now_s()
            way()
            taken[name].append(now_s() - began)
    size_kb = statistics.mean((folder / name).stat().st_size for name in names) / 1e3
    print(
        f"{args.images} JPEGs of {args.side} px and {size_kb:.0f} kB, one worker, {peak_gb():.2f} GB"
    )
    print(f"{'':<24}{'ms':>10}{'ms of CPU':>10}{'x plain':>10}{'of CPU':>10}")
    for name, rounds in taken.items():
        each = 1e3 * np.median(rounds, axis=0) / args.images
        ratio = np.median(np.divide(rounds, taken["plain decoding"]), axis=0)
        print(f"{name:<24}{each[0]:>10.2f}{each[1]:>10.2f}{ratio[0]:>10.2f}{ratio[1]:>10.2f}")


def measure_hashes(args: argparse.Namespace, folder: Path) -> None:
    hashes = draw_hashes(args.hashes)
    digits = [f"{value:016x}" for value in hashes.tolist()]
    prints = pd.DataFrame({"whole": digits, "content": digits, "centre": digits})
    began = now_s()
    found = close_pairs(prints, RADIUS_BITS, mirrored=False)
    seconds, of_cpu = now_s() - began
    print(f"{len(hashes):,} hashes, radius {RADIUS_BITS} bits: {seconds:.0f} s", end="")
    print(f" ({of_cpu:.0f} of CPU), {peak_gb():.2f} GB at most")
    if len(hashes) < FULL:
        more = (FULL / len(hashes)) ** 2  # every hash is compared with every other
        print(
            f"{FULL:,} would take {more * seconds:.0f} s ({more * of_cpu:.0f} of CPU), by squares"
        )
    sample = np.r_[: min(args.sample, len(hashes))]  # the first are those with planted neighbours
    expected = np.concatenate([close_by_counting(hashes, number) for number in sample])
    ours = np.concatenate([found[["first", "second"]], found[["second", "first"]]])
    ours = np.column_stack([ours, np.tile(found["distance"], 2)])
    ours = ours[np.isin(ours[:, 0], sample)]
    wrong = set(map(tuple, ours.tolist())) ^ set(map(tuple, expected.tolist()))
    print(
        f"{len(sample)} of them against all by counting bits: {len(expected)} neighbours, ", end=""
    )
    print(f"{len(wrong)} missed or wrong")


def close_by_counting(hashes: np.ndarray, number: int) -> np.ndarray:
    """(N, 3): `number`, each other position within the radius, and the distance in bits."""
    words = (hashes ^ hashes[number]).view(np.uint16).reshape(-1, 4)
    distance = BITS_SET[words].sum(axis=1, dtype=np.int64)
    near = np.flatnonzero(distance <= RADIUS_BITS)
    near = near[near != number]
    return np.column_stack([np.full_like(near, number), near, distance[near]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--rows", type=int, default=2_830_000)
    parser.add_argument("--classes", type=int, default=316_446)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--side", type=int, default=500, help="px, the longer side")
    parser.add_argument("--hashes", type=int, default=FULL)
    parser.add_argument("--sample", type=int, default=500, help="hashes that are checked")
    parser.add_argument("--in-folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; choose of {', '.join(PARTS)}")
    if args.in_folder:
        measures = dict(zip(PARTS, (measure_table, measure_images, measure_hashes), strict=True))
        return measures[args.parts[0]](args, args.in_folder)
    for part in args.parts or PARTS:
        with tempfile.TemporaryDirectory() as name:
            run_apart(part, args, Path(name))


def run_apart(part: str, args: argparse.Namespace, folder: Path) -> None:
    """One part in a process of its own. The table is drawn here: it is no part of the peak."""
    if part == "table":
        drawn = draw_table(args.rows, args.classes)
        for suffix in ("csv", "parquet"):
            save_manifest(drawn, folder / f"drawn.{suffix}")
    sizes = [f"--{key}={getattr(args, key)}" for key in SIZES]
    print(f"[{part}]", flush=True)
    subprocess.run(
        [sys.executable, Path(__file__), part, *sizes, "--in-folder", folder], check=True
    )


if __name__ == "__main__":
    main()
