"""Models named by `hf://owner/name[@revision]`: the part of a Hugging Face repository that loads one, on the local disk.

The cache, the token, the endpoint and offline mode are huggingface_hub's, as the environment sets them: HF_HOME, HF_TOKEN,
HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import re
from functools import partial
from pathlib import Path

from vitrine.core.hub import NAME, REVISION, SCHEME, ask_hub, describe_failure, is_offline, match_reference, notice_cache
from vitrine.core.sentences import list_names

CONFIGS = ("config.json", "preprocessor_config.json")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
PICKLED = "pytorch_model.bin"

REFERENCE = re.compile(rf"{SCHEME}(?P<repository>{NAME}/{NAME}){REVISION}", re.ASCII)


def is_hub_reference(source: str) -> bool:
    return source.startswith(SCHEME)


def parse_hub_reference(source: str) -> tuple[str, str | None]:
    """The repository and the revision; no revision means the newest commit of the main branch."""
    form = "it must read hf://owner/name or hf://owner/name@revision, in letters, digits, '-', '_' and '.'"
    match = match_reference(source, REFERENCE, f"a model on the hub: {form}")
    return match["repository"], match["revision"]


def fetch_repository(source: str) -> Path:
    """The snapshot folder with the configuration and one form of the weights, fetched if the cache does not hold them.

    Where the hub does not give it, a whole copy in the cache is used, with a `Notice` unless offline mode asked for it.
    """
    repository, revision = parse_hub_reference(source)
    found, trouble = ask_hub("model", repository, revision)
    try:
        folder = download_model(repository, revision, only_cached=trouble is not None)
    except Exception as error:  # those of the connection too, which are neither OSError nor ValueError
        reason = trouble or error
        raise describe_failure(source, reason) from reason
    if trouble is not None and not is_offline(trouble):
        notice_cache(source, folder.name, trouble)
    if not any((folder / name).exists() for name in (SINGLE, INDEX, PICKLED)):
        raise ValueError(describe_lack(source, found or [path.name for path in folder.glob("*")]))
    return folder


def download_model(repository: str, revision: str | None, only_cached: bool) -> Path:
    """In two steps, because only the first tells in which form the weights are; most repositories hold more than one."""
    from huggingface_hub import snapshot_download

    download = partial(snapshot_download, repository, local_files_only=only_cached)
    folder = Path(download(revision=revision, allow_patterns=[*CONFIGS, SINGLE, INDEX]))
    if not (folder / SINGLE).exists():
        weights = SHARDS if (folder / INDEX).exists() else PICKLED
        # The folder's name is the commit: a branch may have moved on since the first step.
        download(revision=folder.name, allow_patterns=[*CONFIGS, weights])
    return folder


def describe_lack(source: str, found: list[str]) -> str:
    return (
        f"{source} holds {list_names(found) or 'no files'}: to load a model, {SINGLE}, or {INDEX} with its shards, "
        f"or {PICKLED} is needed. Choose another repository or revision."
    )
