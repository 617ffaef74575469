"""Read, check and write manifests: one table with one row per image, used by every script.

Columns: image_path, label, domain, split, role, and optionally dataset, caption, width, height,
sha256, label_source, weight. A sidecar `<manifest name>.sidecar.yaml` may set `decode` (seen or host), and
declare, per domain, `shared_classes` (test classes occur in train: GLDv2) and `index_is_train` (Met).

A CSV is UTF-8 (a byte order mark and CRLF are accepted) and comma-separated. Its header line names the
columns in any order. Blank lines are ignored but counted, so errors name the line that an editor shows.
Errors in a Parquet file name the row from 0, as in `table.iloc`. Values are not normalised: `Train` or
` train ` is an error.
"""

from guie.data.manifest.checks import check, queries_without_positive
from guie.data.manifest.reading import NUMBERS, OPTIONAL, REQUIRED, DomainDeclaration, Sidecar
from guie.data.manifest.table import Manifest, load_manifest, rows_where, save_manifest

__all__ = [
    "NUMBERS",
    "OPTIONAL",
    "REQUIRED",
    "DomainDeclaration",
    "Manifest",
    "Sidecar",
    "check",
    "load_manifest",
    "queries_without_positive",
    "rows_where",
    "save_manifest",
]
