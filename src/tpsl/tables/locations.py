"""Where a table lies: one file, or a folder or pattern of many, on this machine or in object storage.

    records.csv   records/   records/2026-*.parquet   s3://bucket/records   s3://bucket/records/part-*.parquet

Object storage is what PyArrow reaches (`s3://`, `gs://`, `abfs://`), and what fsspec does where PyArrow does not.
Names, keys and endpoints come from the environment, as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL, never from a path. In a
URL a question mark is no part of a pattern: parameters come after it, as in `s3://bucket/records?region=eu-west-1`.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from tpsl.tables import ArrowObject, DataError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/+(?=[^/])")  # pathlib makes one slash of two
_PASSWORD = re.compile(r"(?<=://)[^/@]*:(?![0-9]+/).*(?=@)")  # keys hold any sign; a number is a port
_WILD = re.compile(r"[*?[]")
_HIDDEN = re.compile("/[._]")


@dataclass(frozen=True, repr=False)
class Url:
    """A place in object storage. Where it is shown it has neither a password nor parameters."""

    text: str

    def __str__(self) -> str:
        return _PASSWORD.sub("…", self.text.partition("?")[0])

    __repr__ = __str__

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self).rstrip("/").rpartition("/")[2]


Location = Path | Url


@dataclass(frozen=True)
class StoredFile:
    """One file of a table; `name` is what errors call it, `modified` the nanosecond of its last change."""

    name: str
    size: int
    modified: int
    is_local: bool
    _path: str = field(repr=False)
    _filesystem: ArrowObject = field(repr=False, compare=False)

    def open(self) -> ArrowObject:
        """Open the file to be read at any position."""
        return self._filesystem.open_input_file(self._path)


def is_url(text: str) -> bool:
    """Return whether a text is a URL, and no path."""
    return _SCHEME.match(text) is not None


def location_of(text: str | Path, folder: Path | None = None) -> Location:
    """Return where a table lies, by what a person has written; a relative path is looked for in `folder`."""
    found = _SCHEME.match(str(text))
    if found is None:
        return Path(text) if folder is None else (folder / text).absolute()
    rest = str(text)[found.end() :]
    return Path("/", rest) if found[1] == "file" else Url(f"{found[1]}://{rest}")


def is_there(location: Location) -> bool:
    """Return whether there is a file at a location, or a folder, even an empty one."""
    return _is_folder(location) or bool(_found(location)[1])


def why_there_is_none(location: Location) -> str:
    """Return a sentence on a location without files."""
    return f"{location}: {'the folder has no files' if _is_folder(location) else 'there is no such file'}"


def files_of(location: Location) -> list[StoredFile]:
    """Return the files at a location in the order of their names; if there is none, that is an error.

    Those of a folder are all in it and below it, but for names that begin with a dot or an underscore.
    """
    filesystem, infos = _found(location)
    if not infos:
        raise DataError(why_there_is_none(location))
    is_local = isinstance(location, Path)
    scheme = "" if isinstance(location, Path) else f"{location.text.partition(':')[0]}://"
    return [
        StoredFile(
            info.path if is_local else scheme + info.path.lstrip("/"),
            info.size,
            info.mtime_ns or 0,
            is_local,
            info.path,
            filesystem,
        )
        for info in infos
    ]


def _is_folder(location: Location) -> bool:
    return isinstance(location, Path) and location.is_dir()


def _found(location: Location) -> tuple[ArrowObject, list[ArrowObject]]:
    """Return the file system of a location, and a `FileInfo` of each file there, or of all that a pattern matches."""
    from pyarrow import fs

    filesystem, path = _opened(location)
    try:
        (there,) = infos = filesystem.get_file_info([path])
        if there.type == fs.FileType.Directory:
            listed = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
            below = len(path.rstrip("/"))
            infos = [info for info in listed if not _HIDDEN.search(info.path, below)]
        elif not there.is_file:
            infos = _matching(filesystem, path)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{location}: cannot be reached ({reason})") from error
    return filesystem, sorted((info for info in infos if info.is_file), key=lambda info: str(info.path))


def _matching(filesystem: ArrowObject, path: str) -> list[ArrowObject]:
    """Return what a pattern matches; nothing if it is no pattern."""
    from fsspec.utils import glob_translate  # type: ignore[import-untyped]
    from pyarrow import fs

    wild = _WILD.search(path)
    if wild is None:
        return []
    folder = path[: wild.start()].rpartition("/")[0]
    if not folder:  # Arrow calls the files of the current folder ./a.csv
        folder, path = ".", f"./{path}"
    deep = "/" in path[len(folder) + 1 :]
    fits = re.compile(glob_translate(path)).match
    listed = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=deep))
    return [info for info in listed if fits(info.path)]


def _opened(location: Location) -> tuple[ArrowObject, str]:
    """Return the file system of a location, and its path there."""
    from pyarrow import fs

    if isinstance(location, Path):
        return fs.LocalFileSystem(), str(location)
    if _PASSWORD.search(location.text):
        raise DataError(f"{location}: a path holds no password; name and key come from the environment")
    path, *parameters = location.text.split("?", 1)
    try:
        return fs.FileSystem.from_uri("?".join([quote(path, safe=":/@*"), *parameters]))  # type: ignore[no-any-return]
    except pa.ArrowInvalid as unknown:
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            found, path = url_to_fs(location.text)
        except (ImportError, ValueError) as error:
            raise DataError(f"{location}: neither PyArrow nor fsspec can open it ({error})") from unknown
        return fs.PyFileSystem(fs.FSSpecHandler(found)), path
