r"""The formats that can be enforced, as body languages.

With ``format="assert"`` a known format limits the strings; what is generated is valid for the standard that the format
names, but need not be all of it: host names and e-mail addresses are ASCII, times have no leap second, e-mail addresses
no quoted part. ``"python"`` is for schemas that come from Python types: the same names, limited to what Pydantic turns
into a `datetime`, a `UUID`, an address; there an offset from UTC may be left out, as documents do.

Sources: RFC 3339 (dates, times, durations), RFC 5321 and 5322 (e-mail), RFC 1123 (host names), RFC 2673 and 4291 (IP),
RFC 3986 and 3987 (URI, IRI), RFC 4122 (UUID), RFC 6570 (URI templates), RFC 6901 (JSON Pointer).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, TypeAlias

from decodekit.constraints import ir
from decodekit.constraints.ir import Node
from decodekit.constraints.json_schema import text
from decodekit.constraints.json_schema.patterns import full_language
from decodekit.errors import UnsupportedSchemaError

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
_DURATION_TIME: Final = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_DURATION: Final = rf"P(\d+W|(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)({_DURATION_TIME})?|{_DURATION_TIME})"
_SHORT_TIME: Final = r"T(\d{1,6}H(\d{1,6}M)?(\d{1,6}S)?|\d{1,6}M(\d{1,6}S)?|\d{1,6}S)"

_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_LABEL: Final = r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
_HOST: Final = rf"{_LABEL}(\.{_LABEL})*"

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

_ESCAPED: Final = r"%[0-9A-Fa-f]{2}"
_UNICODE: Final = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"


def _uri(extra: str) -> tuple[str, str]:
    """(absolute URI, relative reference), with more letters for IRIs."""
    plain = rf"A-Za-z0-9\-._~!$&'()*+,;={extra}"
    pchar = rf"([{plain}:@]|{_ESCAPED})"
    host = rf"(\[{_IPV6}\]|\[v[0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+\]|([{plain}]|{_ESCAPED})*)"
    authority = rf"(([{plain}:]|{_ESCAPED})*@)?{host}(:\d*)?"
    tail = rf"(\?([{plain}:@/?]|{_ESCAPED})*)?(#([{plain}:@/?]|{_ESCAPED})*)?"
    absolute_path = rf"/({pchar}+(/{pchar}*)*)?"
    absolute = rf"[A-Za-z][A-Za-z0-9+\-.]*:(//{authority}(/{pchar}*)*|{absolute_path}|{pchar}+(/{pchar}*)*|){tail}"
    first = rf"([{plain}@]|{_ESCAPED})+"  # no colon, or it would be a scheme
    relative = rf"(//{authority}(/{pchar}*)*|{absolute_path}|{first}(/{pchar}*)*|){tail}"
    return absolute, relative


_URI, _RELATIVE = _uri("")
_IRI, _RELATIVE_IRI = _uri(_UNICODE)
_POINTER: Final = r"(/([^~/]|~[01])*)*"
_VARIABLE: Final = rf"([A-Za-z0-9_]|{_ESCAPED})+(\.([A-Za-z0-9_]|{_ESCAPED})+)*(:[1-9]\d{{0,3}}|\*)?"
_TEMPLATE: Final = rf"([!#$&(-;=?-\[\]_a-z~{_UNICODE}]|{_ESCAPED}|\{{[+#./;?&=,!@|]?{_VARIABLE}(,{_VARIABLE})*\}})*"
_HEX: Final = "[0-9A-Fa-f]"

_PATTERNS: Final = {
    "date": _DATE,
    "time": rf"{_CLOCK}(\.\d+)?{_OFFSET}",
    "date-time": rf"{_DATE}[Tt]{_CLOCK}(\.\d+)?{_OFFSET}",
    "duration": _DURATION,
    "email": rf"{_ATOM}(\.{_ATOM}){{0,2}}@{_HOST}",
    "hostname": _HOST,
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
}
_PYTHON_PATTERNS: Final = _PATTERNS | {
    "time": rf"{_CLOCK}(\.\d{{1,6}})?{_OFFSET}?",
    "date-time": rf"{_DATE}T{_CLOCK}(\.\d{{1,6}})?{_OFFSET}?",
    "duration": rf"P(\d{{1,6}}D({_SHORT_TIME})?|{_SHORT_TIME})",
    "uri": rf"https?://{_HOST}(:[1-9]\d{{0,3}})?(/[A-Za-z0-9\-._~!$&'()*+,;=:@/]*)?(\?[A-Za-z0-9\-._~&=+]*)?",
    "ipv4network": rf"{_IPV4}/32",
    "ipv4interface": rf"{_IPV4}/([12]?\d|3[0-2])",
    "ipv6network": rf"{_IPV6}/128",
    "ipv6interface": rf"{_IPV6}/(12[0-8]|1[01]\d|[1-9]?\d)",
    "ipvanyaddress": rf"({_IPV4}|{_IPV6})",
    "ipvanynetwork": rf"({_IPV4}/32|{_IPV6}/128)",
    "ipvanyinterface": rf"({_IPV4}|{_IPV6})",
}
_NOT_ENFORCED: Final = {
    "assert": frozenset({"regex", "idn-email", "idn-hostname"}),
    "python": frozenset({"regex", "idn-email", "idn-hostname", "file-path", "directory-path", "json-string"}),
}


def names(mode: Formats = "assert") -> tuple[str, ...]:
    """The formats that are enforced."""
    return () if mode == "annotate" else tuple(_PYTHON_PATTERNS if mode == "python" else _PATTERNS)


def language(name: str, mode: Formats, *, at: str) -> Node | None:
    """The texts of a format; None if it is an annotation.

    Raises:
        UnsupportedSchemaError: the format is to be enforced, and known, but not enforceable yet.
    """
    if mode == "annotate":
        return None
    if name in _NOT_ENFORCED[mode]:
        raise UnsupportedSchemaError(
            f'the format "{name}" cannot be enforced while decoding', at=at, hint='format="annotate", or a "pattern"'
        )
    return _language(name, mode)


@lru_cache(maxsize=256)
def _language(name: str, mode: Formats) -> Node | None:
    pattern = (_PYTHON_PATTERNS if mode == "python" else _PATTERNS).get(name)
    if pattern is None:
        return None
    body = full_language(pattern)
    if name == "hostname":
        labels = full_language(r"[^.]{1,63}(\.[^.]{1,63})*")
        body = text.meet(body, labels, text.length(1, 253))
    elif name == "email":
        body = text.meet(body, full_language(r".*@[^.@]{1,63}(\.[^.@]{1,63}){0,2}"))
    assert body is not ir.EMPTY
    return body
