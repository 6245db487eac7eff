r"""The formats of JSON Schema as body languages.

With ``format="assert"`` a known format limits the strings: what is generated is valid for the standard that the format
names. Where that is not a regular language, or a useless one to generate, it is a part of it:

* e-mail addresses have domains of at most 189 letters, those of ``email`` no A-labels (``xn--…``), and address literals
  of IPv4 and IPv6 only;
* a leap second stands at the end of June or December in UTC, with an offset of whole quarters of an hour.

Of the formats in `GUARDED` a mask admits more than is valid, and a guard decides (see `judging`).

Of host names a mask admits the form. Labels of ASCII are letters, digits and hyphens (RFC 1123), of 63 characters at
most; hyphens in the third and fourth place both are reserved for A-labels such as ``xn--p1ai`` (RFC 5890, section
2.3.1). Labels with other characters are made of those that IDNA 2008 lets stand in a label (RFC 5892). The conditions
on a label as a whole are left to a guard (see `schema_guard`): the text that the Punycode of an A-label stands for
(here ``рф``), Unicode's form NFC, contextual characters, the Bidi rule, the length as an A-label. As masks these would
take an automaton for each combination of the Unicode tables, and still cut labels short.

``"python"`` is for schemas that come from Python types: the same names, limited to what Pydantic turns
into a `datetime`, a `UUID`, an address; there an offset from UTC may be left out, as documents do, and the domain of an
e-mail address has a dot.

Sources: RFC 3339 (dates, times, durations), RFC 5321, 5322 and 6531 (e-mail), RFC 1123 and 5890 to 5893 (host names),
RFC 2673 and 4291 (IP), RFC 3986 and 3987 (URI, IRI), RFC 4122 (UUID), RFC 6570 (URI templates), RFC 6901 (JSON
Pointer), ECMA-262 (patterns).
"""

from __future__ import annotations

import re
import unicodedata
import zoneinfo
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from decodekit.constraints.json_schema.strings import character_derivatives, text
from decodekit.constraints.json_schema.strings.patterns import full_language, is_pattern
from decodekit.constraints.language import ir, utf8
from decodekit.constraints.language.node import Node
from decodekit.constraints.work_budget import Work
from decodekit.errors import UnsupportedSchemaError

MAX_LOCAL_PART: Final = 64
"""Octets of the local part of an e-mail address (RFC 5321, section 4.5.3.1.1)."""
MAX_MAIL: Final = 254
"""Octets of an e-mail address (RFC 5321, section 4.5.3.1.3)."""

_BEYOND_ASCII: Final = r"\u0080-\u{10FFFF}"

Formats: TypeAlias = Literal["annotate", "assert", "python"]

_YEAR: Final = r"(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_LEAP_YEAR: Final = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = (
    rf"({_YEAR}-(0[13578]|1[02])-(0[1-9]|[12]\d|3[01])"
    rf"|{_YEAR}-(0[469]|11)-(0[1-9]|[12]\d|30)"
    rf"|{_YEAR}-02-(0[1-9]|1\d|2[0-8])"
    rf"|{_LEAP_YEAR}-02-29)"
)
_OFFSET: Final = r"([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_CLOCK: Final = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"


def _leap_second(is_next_day: bool | None) -> str:
    """23:59:60 UTC by any clock, or by the clocks that show (not) the next day already."""
    here = [r"23:59:60(\.\d+)?([zZ]|[+-]00:00)"]
    later: list[str] = []
    for minutes in range(15, 24 * 60, 15):
        hours, rest = divmod(minutes, 60)
        for sign, places in ((1, later), (-1, here)):
            clock = divmod((24 * 60 - 1 + sign * minutes) % (24 * 60), 60)
            places.append(rf"{clock[0]:02}:{clock[1]:02}:60(\.\d+)?{'[+]' if sign > 0 else '-'}{hours:02}:{rest:02}")
    return f"({'|'.join(here + later if is_next_day is None else later if is_next_day else here)})"


_DURATION_TIME: Final = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_DURATION: Final = rf"P(\d+W|(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)({_DURATION_TIME})?|{_DURATION_TIME})"
_SHORT_TIME: Final = r"T(\d{1,6}H(\d{1,6}M)?(\d{1,6}S)?|\d{1,6}M(\d{1,6}S)?|\d{1,6}S)"

_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_LABEL: Final = r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
_HOST: Final = rf"{_LABEL}(\.{_LABEL})*"

_MAILBOX: Final = rf"{_ATOM}(\.{_ATOM}){{0,2}}@([A-Za-z0-9](-?[A-Za-z0-9]){{0,30}}\.){{1,3}}"
_NO_DOMAIN: Final = "(?i:arpa|invalid|local|localhost|onion|test)"
"""Top-level names that are no domains of the internet (RFC 6761)."""
_NAME: Final = r"[\p{L}][\p{L}0-9 '-]{0,60}"

_BYTE: Final = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4: Final = rf"{_BYTE}(\.{_BYTE}){{3}}"
_H16: Final = r"[0-9A-Fa-f]{1,4}"
_LS32: Final = rf"({_H16}:{_H16}|{_IPV4})"
_IPV6: Final = "({})".format(
    "|".join(
        [
            rf"({_H16}:){{6}}{_LS32}",
            rf"::({_H16}:){{5}}{_LS32}",
            *(rf"(({_H16}:){{0,{before}}}{_H16})?::({_H16}:){{{4 - before}}}{_LS32}" for before in range(5)),
            rf"(({_H16}:){{0,5}}{_H16})?::{_H16}",
            rf"(({_H16}:){{0,6}}{_H16})?::",
        ]
    )
)


def _networks() -> str:
    """IPv4 networks, whose bits behind the prefix are zero."""
    ways = []
    for size in range(33):
        whole, rest = divmod(size, 8)
        parts = [_BYTE] * whole
        if rest:
            parts.append(f"({'|'.join(str(byte) for byte in range(0, 256, 1 << 8 - rest))})")
        ways.append(r"\.".join([*parts, *["0"] * (4 - len(parts))]) + f"/{size}")
    return f"({'|'.join(ways)})"


_IPV4_NETWORK: Final = _networks()
_IPV6_NETWORK: Final = f"({_IPV6}/128|::/0|{'|'.join(f'({_H16}:){{{size}}}:/{16 * size}' for size in range(1, 8))})"
_COLORS: Final = "black|white|gray|grey|red|green|blue|yellow|orange|purple|pink|brown|cyan|magenta|navy|teal|silver"

_ESCAPED: Final = r"%[0-9A-Fa-f]{2}"
# ucschar of RFC 3987: the last two code points of each plane are no characters, plane 14 begins with tags.
_UNICODE: Final = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF" + "".join(
    rf"\u{{{plane:X}{first}}}-\u{{{plane:X}FFFD}}"
    for plane, first in [*((plane, "0000") for plane in range(1, 14)), (14, "1000")]
)
_PRIVATE: Final = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _uri(extra: str, private: str) -> tuple[str, str]:
    """(absolute URI, relative reference), with more letters for IRIs."""
    plain = rf"A-Za-z0-9\-._~!$&'()*+,;={extra}"
    pchar = rf"([{plain}:@]|{_ESCAPED})"
    host = rf"(\[{_IPV6}\]|\[[vV][0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+\]|([{plain}]|{_ESCAPED})*)"
    authority = rf"(([{plain}:]|{_ESCAPED})*@)?{host}(:\d*)?"
    tail = rf"(\?([{plain}:@/?{private}]|{_ESCAPED})*)?(#([{plain}:@/?]|{_ESCAPED})*)?"
    absolute_path = rf"/({pchar}+(/{pchar}*)*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+\-.]*:(//{authority}(/{pchar}*)*|{absolute_path}|{pchar}+(/{pchar}*)*|){tail}"
    first = rf"([{plain}@]|{_ESCAPED})+"  # no colon, or it would be a scheme
    relative = rf"(//{authority}(/{pchar}*)*|{absolute_path}|{first}(/{pchar}*)*|){tail}"
    return absolute, relative


_URI, _RELATIVE = _uri("", "")
_IRI, _RELATIVE_IRI = _uri(_UNICODE, _PRIVATE)
_POINTER: Final = r"(/([^~/]|~[01])*)*"
_VARIABLE: Final = rf"([A-Za-z0-9_]|{_ESCAPED})+(\.([A-Za-z0-9_]|{_ESCAPED})+)*(:[1-9]\d{{0,3}}|\*)?"
_TEMPLATE: Final = (
    rf"([!#$&-;=?-\[\]_a-z~{_UNICODE}{_PRIVATE}]|{_ESCAPED}|\{{[+#./;?&=,!@|]?{_VARIABLE}(,{_VARIABLE})*\}})*"
)
_HEX: Final = "[0-9A-Fa-f]"

# -- host names

MAX_HOST: Final = 253
MAX_MAIL_DOMAIN: Final = 189
"""254 letters of an address (RFC 5321, section 4.5.3.1.3) less a local part of 64 and the @."""

_DOT: Final = re.compile("[.\u3002\uff0e\uff61]")  # RFC 3490, section 3.1
_AN: Final = "[A-Za-z0-9]"
_ANH: Final = "[A-Za-z0-9-]"
_PLAIN_LABEL: Final = f"{_AN}({_AN}|{_ANH}{_AN}({_ANH}{{0,59}}{_AN})?|{_ANH}-{_AN}({_ANH}{{0,58}}{_AN})?)?"
_A_LABEL: Final = f"[xX][nN]--{_ANH}{{0,58}}{_AN}"
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})


def _hosts(label: str, max_length: int = MAX_HOST) -> Node:
    """Host names of ASCII, whose labels are of a pattern."""
    return text.meet(full_language(rf"{label}(\.{label})*"), text.length(1, max_length))


def _international_hosts(dots: str = _DOT.pattern, max_length: int = MAX_HOST) -> Node:
    """Host names of characters that may stand in a label, separated by `dots`, a pattern."""
    import idna  # its tables take 10 ms to load, and few schemas ask for such names

    classes = idna.idnadata.codepoint_classes
    packed = [bounds for name in ("PVALID", "CONTEXTJ", "CONTEXTO") for bounds in classes[name]]
    points = [(bounds >> 32, (bounds & 0xFFFFFFFF) - 1) for bounds in packed]  # upper bounds are exclusive
    label = ir.repeat(text.encode(utf8.normalise([*points, (0x41, 0x5A)])), 1)
    names = ir.concat(label, ir.repeat(ir.concat(full_language(dots), label)))
    return text.meet(names, text.length(1, max_length))


def is_host(name: str) -> bool:
    """Whether all labels of a name are valid, alone and beside each other (RFC 5891, section 4.2; RFC 5893)."""
    import idna

    try:
        idna.encode(name)
        if any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in name):
            return all(idna.check_bidi(label, check_ltr=True) for label in _DOT.split(name))
    except UnicodeError:
        return False
    return not name.endswith(".")


# -- e-mail addresses


def _mail(more: str, domain: Node) -> Node:
    """A mailbox: dot-string or quoted string, and a domain or an address literal; `more` letters for local parts."""
    atom = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~\-{more}]+"
    quoted = rf'"([ !#-\[\]-~{more}]|\\[ -~])*"'
    local = full_language(rf"({atom}(\.{atom})*|{quoted})")
    literal = full_language(rf"\[({_IPV4}|IPv6:{_IPV6})\]")
    return ir.concat(text.meet(local, text.length(1, MAX_LOCAL_PART)), text.spell("@"), ir.choice(domain, literal))


def _python_mail() -> Node:
    """Addresses that Pydantic reads: with a dot in the domain, and a name at its end that is one of the internet."""
    last = text.without(full_language("[A-Za-z]{2,20}"), full_language(_NO_DOMAIN))
    return ir.concat(full_language(_MAILBOX), last)


def _named_mail() -> Node:
    """As `_python_mail`, with or without a name before it."""
    named = ir.concat(full_language(f'({_NAME}|"{_NAME}") <'), _python_mail(), text.spell(">"))
    return ir.choice(_python_mail(), named)


def _is_mail(address: str) -> bool:
    """Whether an address of the right form has a valid domain, and few enough octets: the mask counts characters."""
    local, _, domain = address.rpartition("@")
    is_short = len(local.encode()) <= MAX_LOCAL_PART and len(address.encode()) <= MAX_MAIL
    return is_short and (domain.startswith("[") or is_host(domain))


# -- the formats by name

_ASSERTED: Final[dict[str, str | Callable[[], Node]]] = {
    "date": _DATE,
    "time": rf"({_CLOCK}(\.\d+)?{_OFFSET}|{_leap_second(None)})",
    "date-time": (
        rf"({_DATE}[Tt]{_CLOCK}(\.\d+)?{_OFFSET}"
        rf"|{_YEAR}-(06-30|12-31)[Tt]{_leap_second(False)}|{_YEAR}-(07-01|01-01)[Tt]{_leap_second(True)})"
    ),
    "duration": _DURATION,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": _URI,
    "uri-reference": rf"({_URI}|{_RELATIVE})",
    "iri": _IRI,
    "iri-reference": rf"({_IRI}|{_RELATIVE_IRI})",
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
    "email": lambda: _mail("", _hosts(_PLAIN_LABEL, MAX_MAIL_DOMAIN)),
    "idn-email": lambda: _mail(_BEYOND_ASCII, _international_hosts(r"\.", MAX_MAIL_DOMAIN)),
    "hostname": lambda: _hosts(f"({_PLAIN_LABEL}|{_A_LABEL})"),
    "idn-hostname": _international_hosts,
    "regex": lambda: text.BODY,
}
_OF_PYTHON: Final[dict[str, str | Callable[[], Node]]] = {
    **{name: made for name, made in _ASSERTED.items() if isinstance(made, str)},
    "color": rf"(#({_HEX}{{3}}|{_HEX}{{6}})|{_COLORS})",
    "hostname": lambda: text.meet(
        full_language(_HOST), full_language(r"[^.]{1,63}(\.[^.]{1,63})*"), text.length(1, MAX_HOST)
    ),
    "time": rf"{_CLOCK}(\.\d{{1,6}})?{_OFFSET}?",
    "date-time": rf"{_DATE}T{_CLOCK}(\.\d{{1,6}})?{_OFFSET}?",
    "duration": rf"P(\d{{1,6}}D({_SHORT_TIME})?|{_SHORT_TIME})",
    "uri": rf"https?://({_IPV4}|({_LABEL}\.)*[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*)(:[1-9]\d{{0,3}})?(/[A-Za-z0-9\-._~!$&'()*+,;=:@/]*)?(\?[A-Za-z0-9\-._~&=+]*)?",
    **{
        f"uuid{version}": rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"
        for version in range(1, 9)
    },
    "ipv4network": _IPV4_NETWORK,
    "ipv4interface": rf"{_IPV4}/([12]?\d|3[0-2])",
    "ipv6network": _IPV6_NETWORK,
    "ipv6interface": rf"{_IPV6}/(12[0-8]|1[01]\d|[1-9]?\d)",
    "ipvanyaddress": rf"({_IPV4}|{_IPV6})",
    "ipvanynetwork": f"({_IPV4_NETWORK}|{_IPV6_NETWORK})",
    "ipvanyinterface": rf"({_IPV4}|{_IPV6})",
    "email": _python_mail,
    "name-email": _named_mail,
    "zoneinfo": lambda: text.words(sorted(zoneinfo.available_timezones())),
}
_MADE: Final[dict[Formats, dict[str, str | Callable[[], Node]]]] = {
    "annotate": {}, "assert": _ASSERTED, "python": _OF_PYTHON
}  # fmt: skip
"""By name the pattern of a format, or what makes its language."""
_DOUBTFUL: Final = {
    "time": r"..:..:60[^]*",
    "date-time": r"[^]*:60[^]*",
    "hostname": r"[^]*[xX][nN]--[^]*",
    "idn-hostname": r"[^]*([^\x00-\x7F]|[xX][nN]--)[^]*",
    "email": r"[^]*([xX][nN]--|@\[|@[^]{190})[^]*",
    "idn-email": r"[^]*([^\x00-\x7F]|[xX][nN]--|@\[|@[^]{190})[^]*",
}
_NO_PATTERN: Final = r"([*+?][^\\()\[\]{}]*|[^\\()\[\]{}]*([|^$][*+?]|[*+?][*+]|[*+?]{3})[^\\()\[\]{}]*)"
"""Texts without brackets and escapes that are no patterns: a quantifier has nothing to repeat."""
_REFUSED_BY_PYTHON: Final = frozenset({"idn-email", "idn-hostname", "file-path", "directory-path"})
JSON_STRING: Final = "json-string"
"""The format of strings that hold a text of JSON, which ``contentSchema`` beside it admits: see `Semantics.content`."""


def names(mode: Formats = "assert") -> tuple[str, ...]:
    """The formats that are enforced."""
    return tuple(_MADE[mode])


def language(name: str, mode: Formats, *, at: str) -> Node | None:
    """The texts of a format; None if it is an annotation.

    Raises:
        UnsupportedSchemaError: the format of a Python type whose texts only Python itself can tell.
    """
    if mode == "annotate":
        return None
    if mode == "python" and name in ("regex", JSON_STRING):
        return text.BODY  # a guard asks Python; a network says it
    if mode == "python" and name in _REFUSED_BY_PYTHON:
        raise UnsupportedSchemaError(
            f'the format "{name}" cannot be enforced while decoding', at=at, hint='format="annotate", or a "pattern"'
        )
    return _language(name, mode)


GUARDED: Final[dict[str, Callable[[str], bool]]] = {
    "hostname": is_host,
    "idn-hostname": is_host,
    "idn-email": _is_mail,
    "regex": is_pattern,
}
"""The formats of which `language` has more texts than are valid, with what decides about a text of it."""


def judging(name: str, value: str, mode: Formats, *, at: str) -> Work[bool]:
    """Whether a text is valid for a format; of `GUARDED` formats this is more than being one of `language`.

    Raises:
        UnsupportedSchemaError: as `language`.
        ResourceLimitError: the text is too long to be read as a pattern.
    """
    texts = language(name, mode, at=at)
    if texts is None:
        return True
    if not (yield from text.matching(texts, value)):
        return False
    if mode != "assert" or name not in GUARDED:
        return True
    yield 8 * len(value)
    return GUARDED[name](value)


@lru_cache(maxsize=256)
def denial(name: str, mode: Formats, *, at: str) -> Node | None:
    """The texts that are surely not of a format; None if it is an annotation.

    Where `language` is a part of the format, the texts that the missing part could hold are not among them; nor are
    those that a guard decides.

    Raises:
        UnsupportedSchemaError: as `language`.
    """
    narrow = language(name, mode, at=at)
    if narrow is text.BODY:
        return full_language(_NO_PATTERN)
    if narrow is None or mode == "python" or name not in _DOUBTFUL:
        return None if narrow is None else text.without(text.BODY, narrow)
    ascii_only = _language(name.removeprefix("idn-"), mode)  # whatever has other characters is doubtful anyway
    assert ascii_only is not None
    # Two complements, not that of a union: once a text is doubtful, nothing is left at once.
    return text.without(text.without(text.BODY, full_language(_DOUBTFUL[name])), ascii_only)


@lru_cache(maxsize=256)
def _language(name: str, mode: Formats) -> Node | None:
    made = _MADE[mode].get(name)
    if made is None or isinstance(made, str):
        return None if made is None else full_language(made)
    return character_derivatives.declare(made())  # from sets of characters in every spelling
