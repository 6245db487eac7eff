"""The words of an HTML page as a reader sees them: a line for each block or row of a table, tabs between cells.

    <p>Total <b>40.20</b></p><table><tr><td>a<td>b</table>   ->   Total 40.20
                                                                  a  b

One pass from left to right, without a tree and without recursion: time and memory are linear in the page, however deep
or broken it is. What is not closed is closed by its parent or by the end of the page; what was never opened is passed
over. The rules are those of `html.parser` where a page is well formed, and those of the standard of HTML where it is
not (https://html.spec.whatwg.org/multipage/parsing.html), the same under every version of Python.
"""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from typing import Final

from decodekit.errors import DocumentError
from decodekit.jobs.documents.encodings import is_encoding, plain_text

MAX_TAGS: Final = 2_000_000
"""Of a page: some seconds of work. A page of a book has some ten thousand."""

_UNSEEN: Final = frozenset({"script", "style", "template", "noscript", "svg", "math"})
_MUTE: Final = frozenset({"rt", "rp"})  # their text is a gloss on what stands beside it
_RAW: Final = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
_CELLS: Final = frozenset({"td", "th"})
_NAMES: Final = re.compile(r"\w+")
_LINES: Final = frozenset(
    _NAMES.findall(
        "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption "
        "figure footer form h1 h2 h3 h4 h5 h6 header hr html legend li main menu nav ol option p pre section select "
        "summary table tbody textarea tfoot thead title tr ul"
    )
)
"""The elements that stand on lines of their own."""
_VOID: Final = frozenset(
    _NAMES.findall(
        "area base basefont bgsound br col command embed frame hr image img input isindex keygen link menuitem meta "
        "nextid param source spacer track wbr"
    )
)
"""The elements that have no contents and no end tag."""

_TAG: Final = re.compile(r"(/?)([a-zA-Z][^\s/>]*)")
_BEFORE_VALUE: Final = re.compile(r"[^>=]*")
_BARE_VALUE: Final = re.compile(r"[^\s>]*")
_BLANKS: Final = re.compile(r"\s+")
_LONG_REFERENCE: Final = re.compile(r"&#(?:[0-9]{9,}|[xX][0-9a-fA-F]{9,});?")


def html_text(data: bytes, place: str, encoding: str = "utf-8") -> str:
    """The words of a page; raises DocumentError if it has none, or cannot be read.

    The encoding is that of the byte order mark, else the one that the page declares, else the given one. Scripts,
    styles and comments are not text.
    """
    text = page_words(page_source(data, place, encoding), place)
    if not text:
        raise DocumentError("the page has no text: it is empty, or a program of the page writes it.", at=place)
    return text


def page_words(page: str, place: str) -> str:
    """The words of a page that is a text; perhaps none. Raises DocumentError for one with too many tags."""
    words = _PageText(page, place)
    words.read()
    lines = (re.sub(r" ?\t ?", "\t", line).strip() for line in "".join(words.pieces).split("\n"))
    return "\n".join(line for line in lines if line)


class _PageText:
    """The text of a page without its tags.

    Attributes:
        pieces: of the text: words, line feeds around blocks, tabs behind cells.
        num_visits: how many tags were opened and closed, and texts and comments passed: what the work grows with.
    """

    def __init__(self, source: str, place: str = "") -> None:
        self._source, self._place = source, place
        self._open: list[str] = []
        self._counts: Counter[str] = Counter()
        self._run: list[str] = []  # text since the last tag: blanks are joined over the whole of it
        self._last_quotes: dict[str, int] = {}
        self.pieces: list[str] = []
        self.num_visits = 0

    def read(self) -> None:
        """Go through the page; DocumentError if it has too many tags."""
        source, position = self._source, 0
        while (opening := source.find("<", position)) >= 0:
            self._run.append(source[position:opening])
            position = self._markup(opening)
            self.num_visits += 1
            if self.num_visits > MAX_TAGS:
                hint = "the part of it that matters, as a .txt file"
                raise DocumentError(f"the page has more than {MAX_TAGS:,} tags.", at=self._place, hint=hint)
        self._run.append(source[position:])
        self._end_run()
        while self._open:
            self._close_last()

    def _markup(self, start: int) -> int:
        """Read what begins with ``<``; where the page goes on."""
        source = self._source
        if source.startswith("<!--", start):
            self._end_run()
            short = next((one for one in (">", "->") if source.startswith(one, start + 4)), None)
            return start + 4 + len(short) if short else self._behind("-->", start + 4)
        if source.startswith("<![CDATA[", start):
            self._end_run()
            end = self._behind("]]>", start + 9)
            self._add(source[start + 9 : end].removesuffix("]]>"))
            return end
        tag = _TAG.match(source, start + 1)
        if tag is None:
            if source[start + 1 : start + 2] in ("!", "?", "/"):
                if not source.startswith("</>", start):
                    self._end_run()
                return self._behind(">", start + 2)
            self._run.append("<")
            return start + 1
        name = tag[2].lower()
        if tag[1]:
            if name not in _VOID:  # what is closed already, and nothing happens
                self._end_run()
                self._close(name)
            return self._behind(">", tag.end())
        self._end_run()
        end, is_closed = self._end_of_tag(tag.end())
        if end < 0:
            return len(source)
        self._start(name, is_closed)
        if name in _RAW and not is_closed:
            script_end = _RAW[name].search(source, end)
            return script_end.start() if script_end else len(source)
        return end

    def _behind(self, text: str, start: int) -> int:
        """The place where the page goes on behind a text; its end if the text does not come any more."""
        found = self._source.find(text, start)
        return len(self._source) if found < 0 else found + len(text)

    def _end_of_tag(self, position: int) -> tuple[int, bool]:
        """The place where the page goes on behind a start tag, -1 for none; and whether the tag closes itself."""
        source = self._source
        while True:
            begin = position
            position = _BEFORE_VALUE.match(source, position).end()  # type: ignore[union-attr]  # matches all texts
            if position >= len(source):
                return -1, False
            if source[position] == ">":
                return position + 1, position > begin and source[position - 1] == "/"
            position += 1
            while source[position : position + 1].isspace():
                position += 1
            quote = source[position : position + 1]
            if quote in ('"', "'") and quote and (closing := self._closing(quote, position + 1)) >= 0:
                position = closing + 1
            else:
                position = _BARE_VALUE.match(source, position).end()  # type: ignore[union-attr]

    def _closing(self, quote: str, start: int) -> int:
        """The place of the next quotation mark; -1 if none comes, which is looked up once for the page."""
        if quote not in self._last_quotes:
            self._last_quotes[quote] = self._source.rfind(quote)
        return self._source.find(quote, start) if start <= self._last_quotes[quote] else -1

    # --- elements and text -------------------------------------------------------------------------------------------

    @property
    def _is_seen(self) -> bool:
        return not self._counts["unseen"]

    def _start(self, name: str, is_closed: bool) -> None:
        if self._is_seen and (name in _LINES or name == "br"):
            self.pieces.append("\n")
        self._open.append(name)
        self._counts[name] += 1
        self._counts["unseen"] += name in _UNSEEN
        self._counts["mute"] += name in _MUTE
        if is_closed or name in _VOID:
            self._close_last()

    def _close(self, name: str) -> None:
        """Close an element and what is open in it; nothing if it is not open."""
        if self._counts[name]:
            while self._open[-1] != name:
                self._close_last()
            self._close_last()

    def _close_last(self) -> None:
        name = self._open.pop()
        self._counts[name] -= 1
        self._counts["unseen"] -= name in _UNSEEN
        self._counts["mute"] -= name in _MUTE
        self.num_visits += 1
        if self._is_seen:
            if name in _CELLS:
                self.pieces.append("\t")
            if name in _LINES:
                self.pieces.append("\n")

    def _end_run(self) -> None:
        if self._run:
            text = "".join(self._run)
            self._run = []
            # Python does not make integers of very many digits.
            self._add(unescape(_LONG_REFERENCE.sub("\ufffd", text)) if "&" in text else text)

    def _add(self, text: str) -> None:
        if text and self._is_seen and not self._counts["mute"]:
            self.pieces.append(text if self._counts["pre"] else _BLANKS.sub(" ", text))


_XML_ENCODING: Final = re.compile(rb"\s*<\?[^>]*?encoding=['\"]([^'\">]*)['\"]")
_META: Final = re.compile(rb"<\s*meta([^>]+)", re.IGNORECASE)
_CHARSET: Final = re.compile(rb"charset\s*=\s*[\"']?([^\s/;'\">]+)", re.IGNORECASE)
_SNIFFED: Final = 1 << 16


def _declared(data: bytes) -> str | None:
    """The encoding that a page declares, in its first twentieth, at least 2 KiB and at most 64."""
    head = data[: min(_SNIFFED, max(2048, len(data) // 20))]
    found = _XML_ENCODING.match(head[:1024])
    named = [found[1]] if found else [one for tag in _META.finditer(head) for one in _CHARSET.findall(tag[1])]
    return named[0].decode("ascii", "replace").lower() if named and named[0] else None


def page_source(data: bytes, place: str, encoding: str) -> str:
    """A page as a text with tags; see `html_text`."""
    declared = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else _declared(data)
    if declared is None and encoding != "utf-8":
        return plain_text(data, place, encoding)
    said = f"it declares {declared!r:.80}" if declared else "it declares no encoding, so it is UTF-8"
    name = "utf-8-sig" if (declared or "utf-8") in ("utf-8", "utf8") else str(declared)
    try:
        if not is_encoding(name):
            raise LookupError(f"unknown encoding: {name}")
        return data.decode(name)
    except (UnicodeError, LookupError, ValueError) as error:
        cause = f"the page cannot be decoded: {said}, and {error}"
        raise DocumentError(f"{cause:.400}.", at=place) from error
