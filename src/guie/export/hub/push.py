"""Upload of a folder by the hub's own client."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from guie.base.errors import UserError
from guie.export.hub.folder import CARD, HEAD, LAYOUTS


def listing(folder: Path, repository: str) -> list[tuple[str, int]]:
    """(name, bytes) of what would go to OWNER/NAME: a folder may hold other things too.

    Raises UserError for a name that the hub does not take.
    """
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"--push {repository}: {str(error).splitlines()[0]}") from None
    if repository.count("/") != 1:
        raise UserError(f"--push {repository}: OWNER/NAME is needed")
    names = sorted({CARD, HEAD, *(name for layout in LAYOUTS.values() for name in layout.FILES)})
    files = [folder / name for name in names]
    return [
        (str(file.relative_to(folder)), file.stat().st_size) for file in files if file.is_file()
    ]


def push(folder: Path, repository: str, private: bool = True) -> str:
    """Upload these files, and give the address. Raises UserError where the hub refuses."""
    names = [name for name, _ in listing(folder, repository)]
    client = huggingface_hub.HfApi()
    try:
        client.create_repo(repository, private=private, exist_ok=True)
        done = client.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=names, commit_message="Add model"
        )
    except Exception as error:  # of the network, of the hub, of a missing login
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"--push {repository}: the hub did not take it: {reason}; `hf auth login` first?"
        ) from error
    return str(done)
