"""PyTorch 1.11 itself: its wheel, a program compiled against its libtorch, and a file's embeddings there.

Nothing is installed: pip only downloads the wheel (750 MB) into a folder.
"""

import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("load.cpp")
WHEEL = "torch-1.11.0-cp310-cp310-manylinux1_x86_64.whl"


def fetched(cache: Path) -> Path:
    """Return the folder of the wheel's headers and CPU libraries, unpacked in the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / WHEEL).exists():
        where = ["--python-version", "3.10", "--platform", "manylinux1_x86_64", "-d", str(cache)]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, *where, "torch==1.11.0"], check=True)
    if not (cache / "torch" / "include").exists():
        with zipfile.ZipFile(cache / WHEEL) as wheel:
            libraries = ("libc10.so", "libtorch_cpu.so", "libgomp", "libcudart")
            wanted = ("torch/include/", *(f"torch/lib/{name}" for name in libraries))
            wheel.extractall(cache, [n for n in wheel.namelist() if n.startswith(wanted)])
    return cache / "torch"


def compiled(libtorch: Path) -> Path:
    """Return the program of load.cpp, compiled if its source is newer."""
    program = libtorch.parent / "load"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        include, lib = libtorch / "include", libtorch / "lib"
        # The wheel is built with the C++ ABI of before GCC 5.
        flags = ["-std=c++14", "-O1", "-D_GLIBCXX_USE_CXX11_ABI=0", "-w"]
        headers = [f"-I{include}", f"-I{include}/torch/csrc/api/include"]
        paths = [f"-L{lib}", "-Wl,-rpath,$ORIGIN/torch/lib"]
        libraries = [*paths, "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
        subprocess.run(["g++", *flags, *headers, SOURCE, "-o", program, *libraries], check=True)
    return program


def runtime_embeddings(loader: Path, path: Path, images_HWC: list[Tensor]) -> Tensor:
    """Return the embeddings by the file at `path` in libtorch 1.11, (N, D)."""
    sent, received = path.with_name("images.bin"), path.with_name("embeddings.bin")
    with sent.open("wb") as file:
        for image in images_HWC:
            file.write(struct.pack("<ii", *image.shape[:2]) + image.numpy().tobytes())
    command = [loader, path, sent, received]
    subprocess.run(command, check=True, capture_output=True, text=True)
    rows = np.fromfile(received, np.int32).reshape(len(images_HWC), -1)
    return torch.from_numpy(rows[:, 1:].view(np.float32))
