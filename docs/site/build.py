"""The documentation site: README, pages, and a reference from docstrings, every link checked.

    python docs/site/build.py    # writes build/site/index.html

The first page is the README, and its table of pages is the order of the site. Pages link to records, examples and code
outside of docs/; what they link to is copied along. The reference has a page for each module of `decodekit._PUBLIC`.
A link that leads nowhere, and a docstring that cannot be read, end the build with status 1.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from posixpath import normpath, relpath

import decodekit
from decodekit import testing

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
COPIES = "files"


def pages_of(readme: str) -> list[str]:
    """The files of the README's table of pages, in its order."""
    return re.findall(r"^\| \[[^]]+\]\(docs/([^)]+\.md)\) \|", readme, re.MULTILINE)


def place_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{COPIES}/{path}" + (".txt" if path.endswith(".md") else "")  # a page that is no page of the site


def with_links(markdown: str, folder: str, place: str) -> tuple[str, set[str]]:
    """A page with the links that it has on the site, and the files of the repository that they lead to.

    Args:
        markdown: with links relative to its folder.
        folder: of the page in the repository: ``.`` or ``docs``.
        place: of the page on the site.
    """
    targets = set()

    def moved(match: re.Match[str]) -> str:
        path = normpath(f"{folder}/{match[1]}")
        if "://" in match[1] or not (ROOT / path).is_file():
            return match[0]  # Sphinx says what is missing
        targets.add(path)
        return f"]({relpath(place_of(path), start=str(Path(place).parent))}{match[2] or ''})"

    return LINK.sub(moved, markdown), targets


def references() -> dict[str, str]:
    """The reference: a page for each module that defines public names, file to reStructuredText."""
    public = {module: sorted(names.split()) for module, names in decodekit._PUBLIC.items()}
    public["decodekit.testing"] = sorted(name for name in testing.__all__ if callable(getattr(testing, name)))
    pages = {}
    for module, names in public.items():
        title = module.removeprefix("decodekit.").capitalize()
        entries = "\n\n".join(_entry(module, name) for name in names)
        pages[f"reference/{title.lower()}.rst"] = f"{title}\n{'=' * len(title)}\n\n{entries}\n"
    return pages


def _entry(module: str, name: str) -> str:
    """The directive that writes the reference of a name."""
    value = getattr(importlib.import_module(module), name)
    kind = "autoclass" if isinstance(value, type) else "autofunction" if callable(value) else "autodata"
    return f".. {kind}:: {module}.{name}"


def index(readme: str, guide: list[str], reference: list[str]) -> str:
    """The first page: the README, and the order of all others."""
    chapters = {"Guide": guide, "Reference": reference}
    tables = (
        f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n:caption: {title}\n\n"
        + "\n".join(name.rsplit(".", 1)[0] for name in names)
        + "\n```\n"
        for title, names in chapters.items()
    )
    return readme + "\n" + "\n".join(tables)


def write() -> None:
    """Write the pages for Sphinx, and copy what they link to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    guide, reference = pages_of(readme), references()
    sources = {"README.md": index(readme, guide, list(reference))}
    sources |= {f"docs/{name}": (ROOT / "docs" / name).read_text(encoding="utf-8") for name in guide}
    copied: set[str] = set()
    written = dict(reference)
    for path, markdown in sources.items():
        written[place_of(path)], targets = with_links(markdown, str(Path(path).parent), place_of(path))
        copied |= targets
    for name, text in written.items():
        page = PAGES / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    for path in copied - sources.keys():
        target = PAGES / place_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)


def main() -> int:
    """Write the pages, build the site; the exit status of Sphinx."""
    write()
    shutil.rmtree(SITE, ignore_errors=True)
    command = ["-b", "html", "-c", str(Path(__file__).parent), "-W", "--keep-going", "-q", str(PAGES), str(SITE)]
    return subprocess.run([sys.executable, "-m", "sphinx", *command], check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
