"""No file that is read can run code: checks the source text, and files that would try."""

import ast
import hashlib
import os
import pickle  # to make files that nobody may load
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import embed
from guie.base import errors
from guie.base.errors import UserError
from guie.config.loading import read_values
from guie.config.model import BackboneConfig
from guie.evaluation.files import load_embeddings
from guie.models.backbones import build_backbone
from guie.training.checkpoint import Checkpoints

REPOSITORY = Path(__file__).parents[1]
FILES = sorted(
    file
    for folder in ("src", "input/toydomains", "tests", "notebooks")
    for file in (REPOSITORY / folder).rglob("*.py")
    if file != Path(__file__)
) + [REPOSITORY / "input/get_small.py"]
# The wheel that pip has checked, and one file by its name
MAY_UNPACK = ("tests/torch111/",)
# The code in a model card, which the exporter wrote
MAY_RUN = ("tests/export/test_hub.py",)
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN = {
    **dict.fromkeys(("eval", "exec", "compile", "builtins.eval", "builtins.exec"), "runs text"),
    **dict.fromkeys(("os.system", "os.popen", "subprocess.getoutput"), "a shell"),
    **dict.fromkeys(("subprocess.getstatusoutput", "asyncio.create_subprocess_shell"), "a shell"),
    **dict.fromkeys(("yaml.load", "yaml.unsafe_load", "yaml.full_load"), "unsafe YAML"),
    **dict.fromkeys(
        ("pandas.read_pickle", "pd.read_pickle", "numpy.lib.format.read_array"), "pickle"
    ),
    "torch.hub.load": "runs a repository's code",
}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or an attribute, `?.c` of an attribute of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def argument(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def fault_of(call: ast.Call, file: str) -> str | None:
    """Return why a call is not safe; None if it is."""
    name = dotted(call.func)
    if name in FORBIDDEN:
        return None if name == "exec" and file in MAY_RUN else FORBIDDEN[name]
    if name == "torch.load" and not is_constant(argument(call, "weights_only"), True):
        return "weights_only=True is missing"
    allow = argument(call, "allow_pickle")
    if allow is not None and not is_constant(allow, False):
        return "allows a pickle"
    shell = argument(call, "shell")
    if shell is not None and not is_constant(shell, False):
        return "a shell"
    if name.split(".")[-1] == "YAML":
        safe = getattr(argument(call, "typ"), "value", None) in ("rt", "safe")
        return None if safe else "a loader that may build any object"
    unpacks = name.endswith((".extractall", ".extract", ".unpack_archive"))
    if unpacks and not name.endswith(".str.extract") and not file.startswith(MAY_UNPACK):
        return "unpacks without an inspection"
    if argument(call, "trust_remote_code") is not None:
        return "runs a repository's code"
    return None


def faults(text: str, file: str = "src/x.py") -> list[str]:
    """Return the places of a module that could run code that they read."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            modules = [node.module] if isinstance(node, ast.ImportFrom) else names
            tops = {str(module).partition(".")[0] for module in modules}
            if tops & PICKLES:
                found.append(f"{file}:{node.lineno}: imports {tops & PICKLES}")
            # By another name, a call would not be recognised
            hidden = {"load", "system", "Popen", "unsafe_load", "extractall", "read_pickle"}
            if isinstance(node, ast.ImportFrom) and hidden & set(names):
                if node.module in ("torch", "numpy", "yaml", "os", "subprocess", "pandas"):
                    found.append(f"{file}:{node.lineno}: from {node.module} import {names}")
        elif isinstance(node, ast.Call):
            fault = fault_of(node, file)
            if fault:
                found.append(f"{file}:{node.lineno}: {dotted(node.func)}: {fault}")
    return found


def test_no_source_runs_a_file_that_it_reads() -> None:
    found = []
    for file in FILES:
        name = file.relative_to(REPOSITORY).as_posix()
        found += faults(file.read_text(encoding="utf-8"), name)
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "np.load(path, allow_pickle=True)",
        "import pickle",
        "from joblib import load",
        "from torch import load",
        'YAML(typ="unsafe").load(text)',
        "ruamel.yaml.YAML(typ=kind)",
        "yaml.unsafe_load(text)",
        "yaml.load(text)",
        "pd.read_pickle(path)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "eval(text)",
        "exec(text)",
        "tarfile.open(path).extractall(folder)",
        "shutil.unpack_archive(path)",
        "torch.hub.load(repository, name)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_unsafe_calls_are_found(text: str) -> None:
    assert len(faults(text)) == 1


class Bomb:
    """Its pickle makes a folder when it is loaded."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def bomb(tmp_path: Path) -> Bomb:
    """A bomb that was shown to work once."""
    bomb = Bomb(tmp_path / "exploded")
    pickle.loads(pickle.dumps(bomb))
    bomb.folder.rmdir()
    return bomb


def test_a_config_builds_no_objects(tmp_path: Path, bomb: Bomb) -> None:
    (tmp_path / "c.yaml").write_text(f"a: !!python/object/apply:os.mkdir ['{bomb.folder}']\n")
    with pytest.raises(UserError, match="c.yaml:1: not valid YAML: a tag"):
        read_values(tmp_path / "c.yaml")
    assert not bomb.folder.exists()


@pytest.mark.parametrize("protocol", ["zip", "legacy", "bare pickle", "safetensors"])
@pytest.mark.parametrize(("library", "name"), [("open_clip", "guie-tiny"), ("timm", "resnet10t")])
def test_weights_that_would_run_code_are_refused(
    library: str, name: str, protocol: str, tmp_path: Path, bomb: Bomb
) -> None:
    file, says = tmp_path / "weights.pt", "which could run code; convert it to .safetensors"
    content = {"state_dict": {"visual.proj": torch.zeros(2)}, "extra": bomb}
    if protocol == "safetensors":  # a pickle by that name
        file, says = tmp_path / "weights.safetensors", "cannot build"
    if protocol in ("zip", "legacy"):
        torch.save(content, file, _use_new_zipfile_serialization=protocol == "zip")
    else:
        file.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UserError, match=says) as caught:
        build_backbone(BackboneConfig(library=library, name=name, pretrained=str(file)))
    assert "\n" not in str(caught.value) and not bomb.folder.exists()


def test_embeddings_that_would_run_code_are_refused(tmp_path: Path, bomb: Bomb) -> None:
    objects = np.empty(1, dtype=object)
    objects[0] = bomb
    np.savez(tmp_path / "E.npz", image_path=objects, embedding=np.zeros((1, 2), np.float32))
    with pytest.raises(UserError, match="E.npz: not an .npz of plain arrays"):
        load_embeddings(tmp_path / "E.npz", pd.DataFrame({"image_path": ["a"]}))
    assert not bomb.folder.exists()


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path, bomb: Bomb) -> None:
    """Though its name has the right hash."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.folder.mkdir()
    torch.save({"state": {}, "task": bomb}, checkpoints.folder / "new.pt")
    digits = hashlib.sha256((checkpoints.folder / "new.pt").read_bytes()).hexdigest()[:16]
    (checkpoints.folder / "new.pt").rename(checkpoints.folder / f"step_00000001-{digits}.pt")
    with pytest.raises(UserError):
        checkpoints.load()
    assert not bomb.folder.exists()


def test_a_command_refuses_a_bomb_in_one_line(tmp_path: Path, bomb: Bomb, capsys) -> None:
    torch.save(bomb, tmp_path / "weights.pt")
    row = "a.png,d/a,d,train,train"
    (tmp_path / "m.csv").write_text(f"image_path,label,domain,split,role\n{row}\n")
    files = ["--manifest", str(tmp_path / "m.csv"), "--out", str(tmp_path / "E.npz")]
    arguments = ["--model", f"timm:resnet10t:{tmp_path / 'weights.pt'}", *files]
    with pytest.raises(SystemExit) as caught:
        errors.run(lambda argv: embed.main(arguments))
    assert caught.value.code == 2
    message = capsys.readouterr().err.splitlines()
    assert [line for line in message if "error" in line] == message[-1:]
    assert message[-1].startswith("error: model.backbone") and "could run code" in message[-1]
    assert not bomb.folder.exists()
