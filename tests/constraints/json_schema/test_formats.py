"""Formats: against the official suite, against `idna` and `re`, and what of them is left out of the language."""

from __future__ import annotations

import itertools
import json
import random
import tarfile
import unicodedata

import idna
import pytest

from decodekit.constraints.constraint import WorkingGuard
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.json_schema.strings import string_formats as formats
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.matching.compiler import compile
from decodekit.constraints.matching.guarded_matcher import GuardedMatcher
from decodekit.constraints.work_budget import done
from tests.constraints.json_schema.test_corpora import SUITE
from tests.reference import pattern_texts
from tests.reference.any_json import any_json
from tests.reference.json_network import accepts, is_admitted
from tests.reference.vocabularies import byte_vocabulary
from tests.sizes import few

EVERY_FORMAT = {
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex",
}  # fmt: skip


def language(name: str) -> Node:
    node = formats.language(name, "assert", at="#/format")
    assert node is not None
    return node


def is_of_format(name: str, value: str) -> bool:
    return done(formats.judging(name, value, "assert", at="#"))


def test_every_format_of_the_specification_is_enforced() -> None:
    assert set(formats.names()) == EVERY_FORMAT


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("time", ["23:59:60Z", "01:29:60.5+01:30", "15:59:60-08:00", "05:44:60+05:45"],
         ["23:58:60Z", "23:59:60+01:00"]),
        ("date-time", ["1998-12-31T23:59:60z", "2016-01-01T08:59:60+09:00", "2015-06-30T16:59:60-07:00"],
         ["1998-12-30T23:59:60Z", "1998-12-31T08:59:60+09:00", "1998-12-31T22:59:60Z", "1998-12-31T23:59:61Z"]),
        ("hostname", ["a--b.com", "a-b", "x" * 63, "xn--4gbwdl.xn--wgbh1c", "XN--P1ai"],
         ["ab--c", "xn--a", "a-", "x" * 64, "a..b", "é.com", "xn--", "xn--ls8h", "xn--" + "a" * 60]),
        ("idn-hostname", ["l·l", "a。b", "שלום", "例え.jp", "A.é", "xn--ihqwcrb4cv8a8dqg056pqjye", "xn--p1ai。рф"],
         ["a·l", "אa", "a" + "̀", "̀a", "É.com", "ab--é", "-é", "é-", "ﬁ"]),
        ("email", ['"a b"@c.d', "a@[127.0.0.1]", "a@[IPv6:::1]", "a" * 64 + "@b"],
         ["a" * 65 + "@b", '"a"b@c', "a@[1.2.3]"]),
        ("idn-email", ["é@ü.com", "é" * 32 + "@a", "用户@例え.jp"], ["é" * 33 + "@a", "a＠b", "é"]),
        ("iri", ["http://a/😀?\ue000", "http://[V1.a]"], ["http://a/\ue000", "http://a b"]),
        ("uri-template", ["a'b", "{a}😀"], ["{a", "a b", "{}"]),
        ("regex", ["", r"^(?:a|b)*?$", r"[^\d\-a-z-]{2,10}", r"(?<n>a)\k<n>+", "(?<!a)b", "x{0}", r"\u{1F600}\cA[]",
                   r"(a)\1", r"\p{Script=Greek}\P{Alpha}"],
         ["(", "a**", "[z-a]", "{1}", "a{3,2}", r"\k<n>", r"\a", r"\p{greek}", "(?i)a", "(?=a)*", "(?<n>a)(?<n>b)"]),
    ],
)  # fmt: skip
def test_by_hand(name: str, good: list[str], bad: list[str]) -> None:
    rule = any_json({"format": name}, format="assert")
    for value in good:
        assert text.matches(language(name), value), value
        assert is_admitted(rule, json.dumps(value).encode()), value
        assert not accepts(any_json({"not": {"format": name}}, format="assert"), json.dumps(value).encode()), value
    for value in bad:
        assert not is_admitted(rule, json.dumps(value).encode()), value
        assert not is_of_format(name, value), value


def test_what_is_left_out_is_not_denied_either() -> None:
    for name, value in (("regex", r"\p{CWKCF}"), ("time", "23:59:60+00:07"), ("email", "a@[x]")):
        assert not is_of_format(name, value)
        denied = any_json({"not": {"format": name}}, format="assert")
        assert not accepts(denied, json.dumps(value).encode()), value
        assert accepts(denied, b'" "') or name == "regex"


@pytest.mark.skipif(not SUITE.exists(), reason=f"no test suite at {SUITE}; set DECODEKIT_CORPORA")
@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_the_official_tests(draft: str) -> None:
    right = wrong = 0
    folder = f"tests/{draft}/optional/format/"
    with tarfile.open(SUITE) as archive:
        for member in archive.getmembers():
            if not member.name.startswith(folder):
                continue
            for group in json.load(archive.extractfile(member)):  # type: ignore[arg-type]
                name = group["schema"]["format"]
                for test in group["tests"]:
                    value = test["data"]
                    found = not isinstance(value, str) or is_of_format(name, value)
                    assert test["valid"] or not found, (member.name, test)
                    right += found == test["valid"]
                    wrong += found != test["valid"]
    assert wrong <= 1 and right > 600


SAMPLE = "al·-é1͵αבת׳ا٠۰・か漢क्‍‌़́بÉ"


def test_every_label_is_one_of_idna() -> None:
    """Labels of one and two letters, and random longer ones: what `idna` encodes is accepted, and nothing else."""
    rng = random.Random(3)
    labels = [*SAMPLE, *(a + b for a in SAMPLE for b in SAMPLE)]
    labels += ["".join(rng.choices(SAMPLE, k=rng.randrange(3, 9))) for _ in range(500)]
    num_accepted = 0
    for label in labels:
        try:
            is_valid = len(idna.encode(label)) <= 63
        except (idna.IDNAError, UnicodeError):
            is_valid = False
        assert is_of_format("idn-hostname", label) == is_valid, ascii(label)
        num_accepted += is_valid
    assert 150 < num_accepted < len(labels) - 150


def is_a_label_of_idna(label: str) -> bool:
    try:
        idna.ulabel(label)
    except (idna.IDNAError, UnicodeError):
        return False
    return True


TOP_LEVEL = """
рф укр бел срб мкд мон бг ею қаз հայ გე ελ ευ 中国 中國 香港 台灣 台湾 新加坡 澳门 한국 삼성 닷컴 みんな コム
ファッション ไทย ລາວ भारत भारतम् भारोत বাংলা ভারত ভাৰত ଭାରତ భారత్ ಭಾರತ ഭാരതം இந்தியா இலங்கை சிங்கப்பூர்
ලංකා ਭਾਰਤ ભારત नेट संगठन कॉम مصر السعودية قطر تونس عمان فلسطين الاردن سورية امارات الجزائر المغرب
ايران پاکستان بھارت بازار شبكة موقع סון קום ישראל онлайн сайт орг дети москва католик 公司 网络 游戏
商城 政务 世界 手机 组织机构 クラウド ストア グーグル vermögensberater รุ่น
"""
"""Top-level domains of the root zone, and a word with two marks on one letter."""


@few(1)
@pytest.mark.parametrize("name", ["hostname", "idn-hostname"])
def test_names_in_use(name: str) -> None:
    rule = any_json({"format": name}, format="assert")
    for label in TOP_LEVEL.split():
        a_label = idna.encode(label).decode()
        for host in (a_label, a_label.upper(), f"example.{a_label}", f"{a_label}.{a_label}", f"{a_label}.www"):
            assert is_admitted(rule, json.dumps(host).encode()), (label, host)
            escaped = host.replace("x", "\\u0078").replace("-", "\\u002D")
            assert is_admitted(rule, b'"' + escaped.encode() + b'"'), (label, escaped)
        assert not is_admitted(rule, json.dumps(a_label + "a").encode()) or is_a_label_of_idna(a_label + "a")
        if name == "idn-hostname":
            assert is_admitted(rule, json.dumps(label, ensure_ascii=False).encode()), label


def test_every_kind_of_code_point_in_a_labels() -> None:
    """One code point of each general category, Bidi class and combining class, beside letters of both directions."""
    kinds: dict[tuple[str, str, int], str] = {}
    for point in range(0x80, 0x110000):
        letter = chr(point)
        category = unicodedata.category(letter)
        if category not in ("Cn", "Co", "Cs"):
            kinds.setdefault((category, unicodedata.bidirectional(letter), unicodedata.combining(letter)), letter)
    others = [*kinds.values(), *"·͵׳״۰٠・‌‍ßςـ〇ーかア漢"]
    num = {True: 0, False: 0}
    for letter in others:
        for label in (
            letter,
            "a" + letter,
            letter + "a",
            "א" + letter,
            "क्" + letter,
            "ب" + letter + "ب",
            "l" + letter + "l",
        ):
            for form in {label, unicodedata.normalize("NFC", label)}:
                a_label = "xn--" + form.encode("punycode").decode()
                expected = is_a_label_of_idna(a_label)
                num[expected] += 1
                assert formats.is_host(a_label) == expected, (ascii(form), a_label)
    assert min(num.values()) > 200


def valid_points() -> list[int]:
    packed = idna.idnadata.codepoint_classes["PVALID"]
    return [point for bounds in packed for point in range(bounds >> 32, bounds & 0xFFFFFFFF)]


def test_random_a_labels() -> None:
    """Labels out of letters that stand close together, and Punycode at random, against `idna`."""
    rng = random.Random(5)
    points = valid_points()
    num = {True: 0, False: 0}
    for _ in range(1500):
        base = rng.choice(points)
        near = [chr(point) for point in (base, base + 1, base + 5, 0x61, 0x31) if not 0xD800 <= point < 0xE000]
        label = "".join(rng.choices(near if rng.random() < 0.5 else SAMPLE, k=rng.randrange(1, 6)))
        digits = label.encode("punycode").decode() if rng.random() < 0.7 else "".join(rng.choices("abk019-", k=5))
        expected = is_a_label_of_idna("xn--" + digits)
        num[expected] += 1
        assert formats.is_host("xn--" + digits) == expected, (ascii(label), digits)
    assert min(num.values()) > 200


def test_a_text_with_a_false_a_label_is_taken_back_to_it() -> None:
    schema = {"properties": {"host": {"format": "hostname"}, "n": {"type": "integer"}}}
    guard = any_json(schema, format="assert").guard()
    assert guard is not None
    assert guard.refuses(b'{"host": "xn--p1ai", "n": 1}') is None
    refusal = guard.refuses(b'{"host": "xn--ls8h", "n": 1}')
    assert refusal is not None and refusal.keep == len(b'{"host": "') and refusal.at == "#/properties/host/format"
    assert any_json(schema).guard() is None  # an annotation
    assert isinstance(guard, WorkingGuard) and guard.is_of_compounds


def test_a_text_that_is_one_string_is_refused_at_its_quote() -> None:
    """Keys are free in the schema, so that following every token to its end would make a state for each key."""
    names = byte_vocabulary([f'{name}":'.encode() for name in range(500)])
    schema = {"properties": {"host": {"format": "hostname"}}, "format": "hostname"}
    grammar = compile(any_json(schema, format="assert"), names)
    mask = allocate_bitmask(1, names.size)
    for name, is_good in ((b"xn--p1ai", True), (b"xn--ls8h", False), (b"p1ai", True)):
        matcher = grammar.matcher()
        assert all(matcher.accept(byte) for byte in b'"' + name)
        matcher.fill_bitmask(mask)
        assert (ord('"') in ids_from_bitmask(mask[0])) == is_good
    matcher = grammar.matcher()
    assert isinstance(matcher, GuardedMatcher)
    matcher.fill_bitmask(mask)
    num_states = matcher.inner.recogniser.num_states
    assert all(matcher.accept(byte) for byte in b'{"')
    matcher.fill_bitmask(mask)
    assert matcher.inner.recogniser.num_states < num_states + 10
    assert matcher._verdicts.closers[matcher.inner.state] is not None  # the way of any other guard
    assert matcher.inner.recogniser.num_states > num_states + 100


def test_a_false_a_label_is_not_finished() -> None:
    """Token by token: the quote is refused behind the one, and allowed behind the other."""
    rule = any_json({"type": "object", "properties": {"host": {"format": "hostname"}}}, format="assert")
    grammar = compile(rule, byte_vocabulary())
    for name, is_good in ((b"xn--p1ai", True), (b"xn--ls8h", False), (b"p1ai", True)):
        matcher = grammar.matcher()
        assert all(matcher.accept(byte) for byte in b'{"host":"' + name)
        mask = allocate_bitmask(1, byte_vocabulary().size)
        matcher.fill_bitmask(mask)
        assert (ord('"') in ids_from_bitmask(mask[0]).tolist()) == is_good
        assert matcher.accept(ord('"')) == is_good
        assert matcher.accept(ord("}")) == is_good


def test_names_are_as_long_as_their_a_labels() -> None:
    """A label has up to 63 letters as an A-label, a name up to 253, however many characters they are written with."""
    for label in ("ü" * 13 + "xyz" * 5, "δ" * 45, "例" * 50):
        a_label = idna.encode(label).decode()
        assert is_host(label) and is_host(a_label) and is_host(f"www.{label}.{label}.{label}")
    rng = random.Random(7)
    num = {True: 0, False: 0}
    for _ in range(300):
        label = "".join(rng.choices("abcüδ例한", k=rng.randrange(10, 60)))
        fits = len("xn--" + label.encode("punycode").decode()) <= 63
        num[fits] += 1
        assert is_host(label) == fits, label
    assert min(num.values()) > 50
    assert (
        len(idna.encode("δ" * 45)) == 51 and is_host(".".join(["δ" * 45] * 4)) and not is_host(".".join(["δ" * 45] * 5))
    )


def test_right_to_left_names() -> None:
    """In a name with right-to-left letters every label keeps the Bidi rule (RFC 5893, section 2)."""
    assert is_host("שלום.example") and is_host("a-b.שלום") and not is_host("1.שלום") and not is_host("שלום.a1-2.3")
    assert is_host("1.example") and not is_host("אa")


def is_host(name: str) -> bool:
    return is_of_format("idn-hostname", name)


def test_text_with_a_false_pattern_is_taken_back_to_it() -> None:
    schema = {"type": "object", "properties": {"p": {"format": "regex"}}, "propertyNames": {"format": "regex"}}
    guard = any_json(schema, format="assert").guard()
    assert guard is not None and guard.refuses(rb'{"p": "\"a"}') is None
    refusal = guard.refuses(b'{"a": 1, "p": "(\\"a", "q": 2}')
    assert refusal is not None and refusal.keep == len(b'{"a": 1, "p": "')
    refusal = guard.refuses(b'{"a": {}, "(": 2}')
    assert refusal is not None and refusal.keep == 1


PRINTABLE = sum(1 << byte for byte in range(0x20, 0x7F) if chr(byte) != '"')


def walk(node: Node, rng: random.Random, num_steps: int) -> str | None:
    """A random text of a body language, if the walk ends in one."""
    spelled = b""
    for _ in range(num_steps):
        rows = [(mask & PRINTABLE, target) for mask, target in node.transitions() if mask & PRINTABLE]
        if not rows or (node.is_nullable and rng.random() < 0.1):
            break
        mask, node = rng.choice(rows)
        spelled += bytes((rng.choice(ir.bytes_of(mask)),))
    return str(json.loads(b'"' + spelled + b'"')) if node.is_nullable else None


def test_every_generated_pattern_can_be_read() -> None:
    """Slow twin: a language of patterns with groups, references, counts and ranges."""
    rng = random.Random(11)
    num_long = 0
    for _ in range(150):
        pattern = walk(pattern_texts.language(), rng, 25)
        if pattern is not None:
            assert is_of_format("regex", pattern), pattern
            num_long += len(pattern) > 3
    assert num_long > 10


def test_the_patterns_that_are_denied() -> None:
    """All short texts without brackets: what the mask admits for no pattern is none."""
    denied = formats.denial("regex", "assert", at="#")
    assert denied is not None
    words = ["".join(letters) for size in range(6) for letters in itertools.product("a|*?+", repeat=size)]
    for word in words:
        assert text.matches(denied, word) != is_of_format("regex", word), word
