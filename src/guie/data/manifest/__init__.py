"""The one table: a row an image. Everything reads and writes it; loading checks it.

Columns: image_path, label, domain, split, role, and optionally dataset, caption, width, height,
sha256, label_source, weight. A sidecar `<manifest name>.sidecar.yaml` may declare, per domain,
`shared_classes` (test classes occur in train: GLDv2) and `index_is_train` (Met).

A CSV is UTF-8 (a byte order mark and CRLF do no harm), comma-separated, with a header line that
names the columns in any order. Blank lines are ignored, and counted: a fault is named by the line
that an editor shows. A row of a Parquet file is named by its number from 0, as `table.iloc` has it.
Values are taken as they are: `Train` or ` train ` is refused, not guessed at.
"""

from guie.data.manifest.checks import check, queries_without_positive
from guie.data.manifest.columns import OPTIONAL, REQUIRED, ROLES
from guie.data.manifest.companions import Companions, companion_path, read_companion
from guie.data.manifest.reading import DomainDeclaration, Sidecar, read_sidecar, sidecar_path
from guie.data.manifest.table import NOTED, SHOWN, Manifest, load_manifest, save_manifest

__all__ = [
    "NOTED",
    "OPTIONAL",
    "REQUIRED",
    "ROLES",
    "SHOWN",
    "Companions",
    "DomainDeclaration",
    "Manifest",
    "Sidecar",
    "check",
    "companion_path",
    "load_manifest",
    "queries_without_positive",
    "read_companion",
    "read_sidecar",
    "save_manifest",
    "sidecar_path",
]
