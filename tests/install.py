"""Install the package in an empty environment, and import every public name from it.

python tests/install.py [--keep FOLDER]

Proves that `pip install .` brings all that the package needs. Takes minutes: PyTorch is installed again.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Runs in the new environment, outside the repository.
IMPORT_ALL = """
import importlib, pkgutil
names = 0
SKIPPED = ("guie.report.notebook",)  # needs the extra dev, as search its own; runs
for top in ("guie", "scorer"):
    package = importlib.import_module(top)
    for found in pkgutil.walk_packages(package.__path__, f"{top}."):
        if found.name.startswith("guie.search") or found.name in SKIPPED:
            continue
        module = importlib.import_module(found.name)
        for name in getattr(module, "__all__", ()):
            getattr(module, name)
            names += 1
print(f"{names} public names from", package.__path__[0])
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="folder of the environment (default: temporary)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = args.keep or Path(folder) / "venv"
        venv.create(place, with_pip=True, clear=True)
        python = place.resolve() / "bin/python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, ".", "-c", "requirements.lock"], cwd=ROOT, check=True)
        # Isolated (-I), so that neither the working folder nor PYTHONPATH lends a package.
        sys.exit(subprocess.run([python, "-I", "-c", IMPORT_ALL], cwd=folder).returncode)


if __name__ == "__main__":
    main()
