"""Lists every model on this machine, and resolves names."""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import structs

from pippin.catalog.download import Download, Progress, download
from pippin.catalog.fitting import search_hub, suited
from pippin.catalog.info import INCOMPLETE, read_info
from pippin.catalog.names import check_name, check_path, is_repository, match_partial, not_found
from pippin.catalog.scan import (
    CatalogRoots,
    Found,
    hub_folder,
    imported_as,
    other_snapshots,
    scan_folder,
    scan_hub,
    scan_others,
    snapshot_of,
    way_out,
)
from pippin.config.accelerator import memory_budget
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import Capabilities, HubModel, ModelInfo, ModelKind, Purpose, Suggestion

SCRIPTED: Final = "scripted"
SCRIPT_SUFFIX: Final = ".script.json"

Stamp = tuple[tuple[int, int], ...]
"""Modification times and sizes."""


@dataclass(frozen=True)
class CatalogEntry:
    """A model folder, usable or not. Exactly one of `info` and `error` is set, except for a model that the operator
    named and that is not downloaded yet: it has both."""

    found: Found
    info: ModelInfo | None
    error: ErrorReport | None
    stamp: Stamp = ()  # of the files that the entry was read from
    repository: str | None = None  # where to download it from

    @property
    def incomplete(self) -> bool:
        """Whether the download is incomplete."""
        return self.error is not None and self.error.code == INCOMPLETE


def stamp_of(folder: Path) -> Stamp:
    """A stamp that changes when files are added or removed, or one of the files that are read is written."""
    times = []
    for name in ("", "config.json", "tokenizer_config.json", "generation_config.json"):
        try:
            status = os.stat(folder / name)
        except OSError:
            times.append((0, 0))
        else:
            times.append((status.st_mtime_ns, status.st_size))
    return tuple(times)


def is_script(name: str) -> bool:
    """Whether an operator's name means the scripted engine: `scripted`, or the path of a script."""
    return name == SCRIPTED or name.endswith(SCRIPT_SUFFIX)


def scripted(name: str, id: str | None) -> CatalogEntry:
    """The scripted model: a JSON script, or the built-in echo."""
    path = None if name == SCRIPTED else str(Path(name).expanduser().resolve())
    served = id or Path(name).name.removesuffix(SCRIPT_SUFFIX)
    info = ModelInfo(
        id=served,
        kind="scripted",
        path=path,
        architecture=SCRIPTED,
        capabilities=Capabilities(chat=True, tools=True, reasoning=True),
    )
    folder = Path(path or ".")
    return CatalogEntry(Found(served, folder, "operator", folder), info, None, stamp_of(folder))


logger = logging.getLogger(__name__)

RECENT: Final = 2.0  # seconds
OTHERS: Final = (
    "GET /v1/models and `pippin list` name the models that are here; `pippin pull ORG/NAME` fetches others."
)
NAMED_ONLY: Final = "This server serves the models that it was started with, and no others."
LOOPBACK: Final = ("localhost", "::1")


class Catalog:
    """Models by name. Reads the disk on demand and caches what has not changed. Thread-safe: a view is replaced as a
    whole."""

    def __init__(self, options: ServerOptions, roots: CatalogRoots) -> None:
        self._options = options
        self._roots = roots
        self._view: _View | None = None
        self._read: dict[tuple[Found, str | None], CatalogEntry] = {}

    def entries(self) -> list[CatalogEntry]:
        """Every model folder with its info, or the reason why it cannot be used; one entry per id."""
        return [entry for entry in self._look().entries.values() if entry.repository is None]

    def models(self) -> list[ModelInfo]:
        """The usable models; with `served_only` only those that the operator named."""
        view = self._look()
        return [
            self._as_served(entry.info)
            for name, entry in view.entries.items()
            if entry.info is not None
            and entry.repository is None
            and (name in view.operators or not self.serves_named_only)
        ]

    def missing(self) -> list[ModelInfo]:
        """The models that the operator named and that are not downloaded yet."""
        view = self._look()
        return [
            entry.info
            for name, entry in view.entries.items()
            if entry.repository is not None and entry.info is not None and view.operators[name].listed
        ]

    def resolve(self, name: str, *, by_operator: bool = False) -> ModelInfo:
        """The model that a name means: an id, a served name, an alias, or a part of an id.

        Paths are accepted only with `by_operator`, for names from the command line and the configuration. A request may
        use a path only as the operator wrote it. Raises `ServerError`: `model_not_found`, `invalid_request` if several
        models match, or `load_failed` if the model is damaged.
        """
        return self._as_served(self._found(name, by_operator=by_operator))

    def _found(self, name: str, *, by_operator: bool) -> ModelInfo:
        """The model for `resolve`, as its files describe it. Raises as `resolve` does."""
        if by_operator:
            entry = self._path_entry(name)
        else:
            # Exactly these words of the operator's may be a path.
            named = any(name == model.path for model in self._options.models)
            entry = (self._exact(name, self._recent()) if named else None) or self._in_roots(name)
        if entry is None:
            if by_operator:
                check_path(name)
            check_name(name)
            entry = self._named(name, every=by_operator or not self.serves_named_only)
        if entry.error is not None:
            raise ServerError.of(entry.error)
        assert entry.info is not None
        return entry.info

    def knows(self, name: str) -> bool:
        """Whether a request's name belongs to a model that is here, or that the operator named."""
        try:
            check_name(name)
            self._named(name, every=not self.serves_named_only)
        except ServerError:
            named = name in (model.path for model in self._options.models)
            return named or self._in_roots(name) is not None
        return True

    def adopt(self, options: ServerOptions) -> None:
        """Use these options from now on, after the configuration was reloaded."""
        self._options = options
        self._view = None  # it has the models' options of before

    def options_for(self, info: ModelInfo) -> ModelOptions:
        """The model's own options, or those for all models."""
        own = self._recent().operators.get(info.id)
        return self._with_folders(self._options.model_defaults if own is None else own.options)

    async def complete(self, info: ModelInfo, on_progress: Progress, *, by_operator: bool = False) -> None:
        """Download the missing files that a model needs beside it, if that is allowed: the draft model and adapters
        that its options name, and codecs and tokenizers of speech models. Whatever stays missing is reported by the
        load."""
        if not (by_operator or self.downloads_allowed) or self._options.offline:
            return
        for name in beside(self.options_for(info)).values():  # anything that is here is a path by now
            if (repository := self._repository(name)) is not None:
                await self._fetch(repository, on_progress)
        for companion in info.companions:
            snapshot = snapshot_of(hub_folder(self._roots.hub, companion.repository))
            if snapshot is not None and any(snapshot.rglob(companion.files[0])):
                continue
            try:
                await self._fetch(companion.repository, on_progress, companion.files)
            except ServerError as error:
                if companion.needed:
                    raise
                logger.warning("%s Some requests need it.", error.report.message)

    def _with_folders(self, options: ModelOptions) -> ModelOptions:
        """The options with the draft model and adapters as folders; they may be given as repositories or aliases."""
        draft, adapter = options.draft_model_path, options.adapter_path
        return structs.replace(
            options,
            draft_model_path=None if draft is None else self._folder_of(draft),
            adapter_path=None if adapter is None else self._folder_of(adapter),
            adapters={name: self._folder_of(folder) for name, folder in options.adapters.items()},
        )

    def _folder_of(self, name: str) -> str:
        """The folder of a model or adapter that the operator named; the name itself if there is none."""
        if Path(name).expanduser().exists():
            return name
        repository = self._repository(name)
        snapshot = None if repository is None else snapshot_of(hub_folder(self._roots.hub, repository))
        if snapshot is not None:
            return str(snapshot)
        try:
            # Not as served: that would ask for the model's options again, and a model may draft for itself.
            return self._found(name, by_operator=True).path or name
        except ServerError:
            return name

    def can_be_had(self, name: str) -> bool:
        """Whether the operator's name for a model or adapter refers to something here, or to a repository that may be
        downloaded."""
        if Path(self._folder_of(name)).expanduser().exists():
            return True
        is_path = name.startswith(("/", "~", "./", "../"))
        return not is_path and self._repository(name) is not None and not self._options.offline

    async def search(self, words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
        """The most downloaded models on the hub whose names contain these words. Raises `ServerError`."""
        if self._options.offline:
            raise ServerError(
                "permission", "--offline or HF_HUB_OFFLINE forbids it. `pippin list` shows what is here."
            )
        from asyncio import to_thread  # slow to import

        return await to_thread(search_hub, words, limit=limit, mlx_only=mlx_only)

    def suited(self, purpose: Purpose) -> list[Suggestion]:
        """Models of the list that ships with Pippin that fit this machine."""
        return suited(purpose, memory_budget(self._options))

    async def fetch(self, name: str, on_progress: Progress) -> ModelInfo:
        """The model that the operator names, and the files that it needs beside it, downloaded if they are missing."""
        info = await self.ensure(name, on_progress, by_operator=True)
        await self.complete(info, on_progress, by_operator=True)
        return info

    async def ensure(self, name: str, on_progress: Progress, *, by_operator: bool = False) -> ModelInfo:
        """The model that a name means; downloads it first if it is missing and may be downloaded."""
        view = self._recent()
        entry = self._exact(name, view)
        if entry is not None and entry.repository is not None:
            repository: str | None = entry.repository  # an entry's name takes precedence over an alias
        else:
            named = name in self._options.aliases or (entry is not None and entry.found.id in view.operators)
            known = by_operator or named or not self.serves_named_only
            repository = self._repository(name) if known else None
        try:
            return self.resolve(name, by_operator=by_operator)
        except ServerError as error:
            here = error.report.kind not in ("model_not_found", "load_failed")
            if here or repository is None or not (by_operator or self.downloads_allowed):
                raise
        if self._options.offline:
            message = (
                f"The model {repository} is not here, and --offline or HF_HUB_OFFLINE forbids to download it. "
                "`pippin list` shows what is here."
            )
            raise ServerError("model_not_found", message, "model")
        if not is_repository(repository):
            raise ServerError(
                "invalid_request", f"{repository!r} is not a repository of the form org/name.", "model"
            )
        await self._fetch(repository, on_progress)
        self._view = None  # it predates the download
        return self.resolve(repository)

    async def _fetch(self, repository: str, on_progress: Progress, files: tuple[str, ...] = ()) -> None:
        wanted = Download(
            repository=repository,
            cache=str(self._roots.hub),
            timeout=self._options.download_timeout,
            retries=self._options.download_retries,
            files=files,
        )
        await download(wanted, on_progress)

    @property
    def downloads_allowed(self) -> bool:
        """Whether requests may trigger downloads: by default on loopback, and where everyone may manage the server."""
        if self._options.offline:
            return False
        if self._options.allow_downloads is not None:
            return self._options.allow_downloads
        return self._options.allow_unauthenticated or self._on_loopback

    @property
    def serves_named_only(self) -> bool:
        """Whether requests may only use models that the operator named: by default where callers without a key can
        reach the server."""
        options = self._options
        if not any(model.listed for model in options.models):
            return False
        if options.served_only is not None:
            return options.served_only
        keys = bool(options.api_keys or options.api_key_file)
        return not (keys or options.allow_unauthenticated or self._on_loopback)

    @property
    def _on_loopback(self) -> bool:
        return self._options.host in LOOPBACK or self._options.host.startswith("127.")

    def remove(self, name: str) -> CatalogEntry:
        """Delete a model's files, if the model is in the Hub's cache or among Pippin's imports.

        Requires the whole name, because a part might match another model than the one intended.
        """
        check_name(name)
        view = self._look()
        entry = self._exact(name, view)
        if entry is None:
            raise not_found(name, view.entries, "Give the whole name; `pippin list` shows it.")
        root = {"hub": self._roots.hub, "import": self._roots.imports}.get(entry.found.source)
        if root is None or entry.found.root.parent.resolve() != root.resolve():
            other = {source for source, _ in self._roots.others} & {entry.found.source}
            owner = f"among the models of {other.pop()}" if other else "in a folder of your own"
            message = f"The model {entry.found.id} lies {owner}; delete it there."
            raise ServerError("permission", message, "model")
        if entry.found.root.is_symlink():
            entry.found.root.unlink()
        else:
            shutil.rmtree(entry.found.root)
        self._view = None
        return entry

    def _scan(self) -> Iterator[Found]:
        for folder in self._options.model_dirs:
            yield from scan_folder(Path(folder).expanduser(), "folder")
        yield from scan_folder(self._roots.imports, "import")
        yield from scan_hub(self._roots.hub)
        yield from scan_others(self._roots.others)

    def _recent(self) -> "_View":
        """The last view if it is at most `RECENT` old: each request resolves a name on the event loop."""
        view = self._view
        return view if view is not None and time.monotonic() - view.made < RECENT else self._look()

    def _look(self) -> "_View":
        """Read the disk: the operator's models first, under their served names."""
        # No answer, log or terminal can write other names as they are, such as bytes that are no UTF-8.
        scanned = [found for found in self._scan() if found.id.isprintable()]
        view = _View(time.monotonic(), {}, {}, {})
        served: dict[Path, str] = {}
        for model in self._options.models:
            entry = self._operator_entry(model, scanned)
            if entry is None or entry.found.id in view.entries:
                continue
            view.entries[entry.found.id] = entry
            view.operators[entry.found.id] = model
            view.other_names.setdefault(model.path, entry.found.id)
            if entry.repository is None:
                served.setdefault(entry.found.folder, entry.found.id)
            else:
                view.other_names.setdefault(entry.repository, entry.found.id)
        for found in scanned:
            if found.folder in served:
                view.other_names.setdefault(found.id, served[found.folder])
            elif found.id not in view.entries:
                view.entries[found.id] = self._entry(found)
        self._view = view
        return view

    def _operator_entry(self, model: ModelEntry, scanned: list[Found]) -> CatalogEntry | None:
        """A model from the command line or the configuration, under its served name, downloaded or not; None if the
        name cannot be a repository, or could mean several models."""
        local = self._path_entry(model.path, model.name, model.kind)
        if local is not None:
            return local
        by_id = {found.id: found for found in reversed(scanned) if not found.is_gguf}
        target = self._repository(model.path) or model.path
        matches = [target] if target in by_id else match_partial(target, by_id)
        if len(matches) == 1:
            found = by_id[matches[0]]
            return self._entry(replace(found, id=model.name or found.id), model.kind)
        if matches or not is_repository(target):
            return None
        name = model.name or target
        message = (
            f"The model {name!r} is served here, but {target} is not downloaded yet. {self._way_here(target)}"
        )
        return CatalogEntry(
            Found(name, Path(target), "operator", Path(target)),
            ModelInfo(id=name, kind=model.kind or "language"),
            ErrorReport(kind="model_not_found", message=message, param="model"),
            repository=target,
        )

    def _path_entry(
        self, name: str, id: str | None = None, kind: ModelKind | None = None
    ) -> CatalogEntry | None:
        """The model at a path that the operator gave; None if there is none."""
        if is_script(name):
            return scripted(name, id)
        path = Path(name).expanduser()
        if not os.path.isdir(path):  # false also for what can be no path
            return None
        path = path.resolve()
        return self._entry(Found(id or path.name, path, "operator", path), kind)

    def _in_roots(self, name: str) -> CatalogEntry | None:
        """The model at a path that a request names, with all links resolved, if it is inside a folder that the operator
        opened for that. Its id is the path, because two folders may contain the same name."""
        if not self._options.model_paths or not name.startswith(("/", "~/")):
            return None
        try:
            folder = Path(name).expanduser().resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            return None
        roots = [Path(root).expanduser().resolve() for root in self._options.model_paths]
        if not folder.is_dir() or not any(folder.is_relative_to(root) for root in roots):
            return None
        return self._entry(Found(str(folder), folder, "operator", folder))

    def _named(self, name: str, *, every: bool) -> CatalogEntry:
        """The entry for a name: among all models on disk if `every`, else among those that the operator named."""
        every = every or name in self._options.aliases or name == self._options.claude_model
        view = self._recent()
        entry = self._exact(name, view)
        if (
            entry is not None
            and (every or entry.found.id in view.operators)
            # A missing model may have arrived, and the files of others may have changed.
            and entry.repository is None
            and entry.stamp == stamp_of(entry.found.folder)
        ):
            return entry
        view = self._look()
        by_id = view.entries
        if not every:
            by_id = {each: by_id[each] for each in by_id if each in view.operators}
        entry = self._exact(name, view)
        if entry is not None and entry.found.id in by_id:
            return entry
        # An alias comes from the operator and may name a script. A request's own name never may.
        if (target := self._options.aliases.get(name)) is not None and is_script(target):
            return scripted(target, name)
        listed = [
            each
            for each, entry in by_id.items()
            if not entry.found.is_gguf and (each not in view.operators or view.operators[each].listed)
        ]
        matches = match_partial(name, listed)
        if len(matches) == 1:
            return by_id[matches[0]]
        if matches:
            message = f"`model` {name!r} could mean any of: {', '.join(matches)}. Give the whole name."
            raise ServerError("invalid_request", message, "model")
        if (file := by_id.get(f"{name}:latest")) is not None:  # as Ollama reads a name
            return file
        claude = self._options.claude_model
        if claude is not None and name.startswith("claude-") and not claude.startswith("claude-"):
            return self._named(claude, every=True)
        hint = NAMED_ONLY
        if every:
            repository = self._repository(name)
            hint = OTHERS if repository is None else self._way_here(repository)
        raise not_found(name, listed, hint)

    def _exact(self, name: str, view: "_View") -> CatalogEntry | None:
        target = self._repository(name) or name
        names = (name, view.other_names.get(name), target, view.other_names.get(target))
        found = [view.entries[each] for each in names if each is not None and each in view.entries]
        # A client of Ollama goes on to ask for what was imported by the name that it has there.
        made = [imported_as(each.found.id) for each in found if each.found.is_gguf]
        found += [view.entries[each] for each in made if each in view.entries]
        # The name of another program's GGUF file may also be an alias of a model that can be served.
        return min(found, key=lambda entry: entry.found.is_gguf, default=None)

    def _repository(self, name: str) -> str | None:
        """The repository that a name stands for: through the operator's aliases, or its form."""
        target = self._options.aliases.get(name, name)
        return target if is_repository(target) or name in self._options.aliases else None

    def _as_served(self, info: ModelInfo) -> ModelInfo:
        """The model with the operator's context limit, where its own window is longer."""
        limit, own = self.options_for(info).context_length, info.context_window
        if info.kind != "language" or limit is None or (own is not None and own <= limit):
            return info
        return structs.replace(info, context_window=limit)

    def _way_here(self, repository: str) -> str:
        if self._options.offline:
            return "Downloads are off (--offline or HF_HUB_OFFLINE)."
        return f"Fetch it with `pippin pull {repository}`."

    def _entry(self, found: Found, kind: ModelKind | None = None) -> CatalogEntry:
        """The entry of a folder; its files are read again only if they have changed."""
        if found.is_gguf:
            error = ErrorReport(kind="load_failed", message=way_out(found), param="model")
            return CatalogEntry(found, None, error)
        stamp = stamp_of(found.folder)
        key = (found, kind)
        remembered = self._read.get(key)
        if remembered is not None and remembered.stamp == stamp:
            return remembered
        try:
            entry = CatalogEntry(found, read_info(found.folder, id=found.id, kind=kind), None, stamp)
        except ServerError as error:
            entry = CatalogEntry(found, None, error.report, stamp)
            if entry.incomplete:
                entry = _of_another_snapshot(entry, kind)
        self._read[key] = entry
        return entry


def beside(options: ModelOptions) -> dict[str, str]:
    """The models and adapters that a model's options name, each a folder, a repository or an alias, by the option."""
    named = {"draft_model_path": options.draft_model_path, "adapter_path": options.adapter_path}
    named |= {f"adapters[{name}]": folder for name, folder in options.adapters.items()}
    return {option: name for option, name in named.items() if name}


def _of_another_snapshot(entry: CatalogEntry, kind: ModelKind | None) -> CatalogEntry:
    """The entry with the one complete snapshot that the Hub's cache has in place of an incomplete one."""
    found, complete = entry.found, []
    for folder in other_snapshots(found.folder):
        with contextlib.suppress(ServerError):
            complete.append(read_info(folder, id=found.id, kind=kind))
    if len(complete) == 1:
        return replace(entry, info=complete[0], error=None)
    if not complete or entry.error is None:
        return entry
    paths = ", ".join(str(info.path) for info in complete)
    message = f"{entry.error.message} Older snapshots of it are complete; give the path of one: {paths}."
    return replace(entry, error=structs.replace(entry.error, message=message))


@dataclass(frozen=True)
class _View:
    """The models found when the disk was last read, by id."""

    made: float  # monotonic seconds
    entries: dict[str, CatalogEntry]
    operators: dict[str, ModelEntry]
    other_names: dict[str, str]  # further names of served models: the path as written, the id on disk
