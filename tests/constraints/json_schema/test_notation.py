r"""Texts of a schema in other notations than JSON: what readers read, in small worlds whole and in draws.

What is generated is narrower than what Python reads, on purpose: no needless escape (``\a``, ``\101``, ``\N{...}``, a
line break behind a backslash), no control character as it is, no prefix, no three quotation marks, no strings side by
side, no comma behind the last item, no tuple, set or comment; numbers and white space as in JSON.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import random
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pytest
from pydantic import BaseModel

from decodekit.constraints import compile
from decodekit.constraints.constraint import Constraint
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.notation import Notated, Values
from decodekit.errors import ConstraintError, OptionError
from decodekit.testing import check_language
from tests.constraints import test_budgeted_completion as budgeted
from tests.constraints.json_schema.corpora import needs_corpus, sample
from tests.constraints.json_schema.test_mask_oracle import SCHEMAS, compare
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary
from tests.sizes import few, sized

MARK: Final = '<|"|>'
PYTHON: Final = Values("python", "python", "python")
GEMMA: Final = Values(MARK, nested="own", item=",", key=":")
CODER: Final = Values("raw", "python")
NOTATIONS: Final = {"python": PYTHON, "gemma": GEMMA, "coder": CODER, "json": Values(is_ascii=True)}
BYTES: Final = byte_vocabulary()


def notated(schema: Any, values: Values, *without: str, **options: Any) -> Notated:
    return Notated(JsonSchema(schema, **options), values, without)


def takes(rule: Constraint, text: str) -> bool:
    matcher = compile(rule, BYTES).matcher()
    return all(map(matcher.accept, text.encode())) and matcher.is_accepting


def admitted(rule: Constraint, pieces: Iterable[str], most: int, begin: str = "") -> set[str]:
    """The texts of a beginning and at most so many pieces that the mask takes."""
    matcher = compile(rule, BYTES).matcher()
    assert all(map(matcher.accept, begin.encode()))
    found, agenda = set(), [(begin, matcher, 0)]
    while agenda:
        text, at, size = agenda.pop()
        if at.is_accepting:
            found.add(text)
        for piece in pieces if size < most else ():
            after = at.fork()
            if all(map(after.accept, piece.encode())):
                agenda.append((text + piece, after, size + 1))
    return found


def texts(pieces: Sequence[str], most: int, begin: str = "") -> set[str]:
    """All texts of a beginning and at most so many pieces."""
    found = latest = {begin}
    for _ in range(most):
        latest = {text + piece for text in latest for piece in pieces}
        found = found | latest
    return found


def read(reader: Callable[[str], Any], among: Iterable[str]) -> dict[str, Any]:
    """Those that a reader reads."""
    found = {}
    for text in among:
        try:
            found[text] = reader(text)
        except ValueError:
            continue
    return found


def literal(text: str) -> Any:
    """What Python reads; raises ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return ast.literal_eval(text)
    except (SyntaxError, TypeError) as error:
        raise ValueError(text) from error


# -- strings of Python

_CONTROL: Final = r"\\([bfnrt]|x[01][0-9a-fA-F]|u00[01][0-9a-fA-F])"
GENERATED: Final = re.compile(
    rf"'([^'\\\x00-\x1f]|\\['\\]|{_CONTROL})*'|" + rf'"([^"\\\x00-\x1f]|\\["\\]|{_CONTROL})*"'
)
PIECES: Final = ("'", '"', "\\", "x", "0", "a", "n", "\\u00")
OF_STRINGS: Final[dict[str, tuple[Any, Callable[[str], bool]]]] = {
    "any": ({"type": "string"}, lambda value: True),
    "short": ({"type": "string", "maxLength": 2, "minLength": 1}, lambda value: 1 <= len(value) <= 2),
    "listed": ({"enum": ["'", '"', "\n", "a\n", "\\"]}, lambda value: value in ("'", '"', "\n", "a\n", "\\")),
    "pattern": ({"type": "string", "pattern": r"^['\n0]*$"}, lambda value: not value.strip("'\n0")),
}


def strings(fits: Callable[[str], bool], among: Iterable[str]) -> set[str]:
    """What is generated: strings that Python reads to a fitting text, without what the module lists."""
    found = read(literal, among)
    return {text for text, value in found.items() if type(value) is str and fits(value) and GENERATED.fullmatch(text)}


@pytest.mark.parametrize("name", OF_STRINGS)
@sized("most", 4, slow=6)
def test_strings_are_those_that_python_reads_to_a_fitting_text(name: str, most: int) -> None:
    schema, fits = OF_STRINGS[name]
    rule = notated(schema, PYTHON)
    for begin in "'\"":
        found = admitted(rule, PIECES, most, begin)
        assert found == strings(fits, texts(PIECES, most, begin))
        assert all(rule.parse(text) == literal(text) for text in found)


def test_the_strings_of_json_are_others() -> None:
    """The comparison fails for a constraint of JSON: it finds ``\\u0000``, which is no ``\\x00``."""
    rule = JsonSchema({"type": "string"}, escapes="any")
    assert admitted(rule, PIECES, 4, '"') != strings(lambda _: True, texts(PIECES, 4, '"'))
    assert takes(rule, r'"\u0041\/"') and not takes(notated({"type": "string"}, PYTHON), r'"\u0041\/"')


@sized("most", 3, slow=5)
def test_more_is_read_than_generated(most: int) -> None:
    """A string of one pair of quotation marks is read as Python reads it, with all of its escapes."""
    rule = notated({}, PYTHON)
    pieces = ("\\", "x", "4", "1", "U000", "N{DIGIT ONE}", "\n", "a", "u00", "\\ud83d", "'")
    among = {f'"{text}"' for text in texts(pieces, most)}
    assert read(rule.parse, among) == read(literal, among)
    assert read(JsonSchema({}).parse, among) != read(literal, among)
    for text in ("0x1F", "1_000", "-.5", "5.", "[1, 2,]", "{'a': [], }", " [ None ]", r"'\ud83d\ude00'", "1e5"):
        assert rule.parse(text) == literal(text)
    for text in ("(1,)", "{1}", "b'a'", "'a' 'b'", "1j", "01", "[,]", "nan", "{'a': 1, 'a': 2}", "", "[1", "a"):
        with pytest.raises(ValueError):  # noqa: PT011  (of many kinds)
            rule.parse(text)


# -- lists and dicts of Python

BRACKETS: Final = ("[", "]", "{", "}", ",", "'a':", '"b":', "True", "1")


def compact(text: str, value: Any) -> bool:
    """Whether a text is a value in the only compact way, but for its quotation marks."""
    written = Values("python", "python", "python", item=",", key=":").written(value)
    return text.replace('"', "'") == written


def is_json(value: Any) -> bool:
    parts = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return isinstance(value, list | dict | bool | int | str) and all(map(is_json, parts))


@sized("most", 4, slow=6)
def test_lists_and_dicts_are_those_that_python_reads(most: int) -> None:
    found = read(literal, texts(BRACKETS, most))
    wanted = {text for text, value in found.items() if is_json(value) and compact(text, value)}
    assert admitted(notated({}, PYTHON, whitespace="compact"), BRACKETS, most) == wanted
    schema = {"items": {"const": 1}, "maxItems": 2, "required": ["a"], "additionalProperties": False,
              "properties": {"a": {"type": ["array", "boolean"]}}}  # fmt: skip

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            return list(value) == ["a"] and (value["a"] is True or isinstance(value["a"], list))
        return not isinstance(value, list) or (len(value) <= 2 and all(one == 1 and one is not True for one in value))

    rule = notated(schema, PYTHON, whitespace="compact")
    assert admitted(rule, BRACKETS, most) == {text for text in wanted if fits(found[text])}


# -- marks


def read_marked(text: str, at: int = 0) -> tuple[Any, int]:
    """A value with marks and bare keys, and where it ends; raises ValueError."""
    if text.startswith(MARK, at):
        end = text.index(MARK, at + len(MARK))
        return text[at + len(MARK) : end], end + len(MARK)
    if text[at : at + 1] not in ("[", "{"):
        found = re.compile("true|false|null|-?(0|[1-9][0-9]*)").match(text, at)
        if found is None:
            raise ValueError(text)
        return json.loads(found[0]), found.end()
    is_object, closing, at = text[at] == "{", "]}"[text[at] == "{"], at + 1
    members: list[tuple[str, Any]] = []
    while text[at : at + 1] != closing or members:
        key = ""
        if is_object:
            key, at = text[at : text.index(":", at)], text.index(":", at) + 1
            if not key or key.strip() != key or re.search("[][{},\"'<]", key) or key in dict(members):
                raise ValueError(text)
        value, at = read_marked(text, at)
        members.append((key, value))
        if text[at : at + 1] != ",":
            break
        at += 1
    if text[at : at + 1] != closing:
        raise ValueError(text)
    return dict(members) if is_object else [value for _, value in members], at + 1


def marked(text: str) -> Any:
    value, end = read_marked(text)
    if end < len(text):
        raise ValueError(text)
    return value


@sized("most", 5, slow=6)
def test_marks_and_bare_keys_are_as_they_are_read(most: int) -> None:
    pieces = (MARK, "<", "a", "{", "}", ":", "[", "]", ",", *(['"', " "] if most > 5 else ()))
    rule = notated({}, GEMMA, whitespace="compact")
    wanted = read(marked, texts(pieces, most))
    assert admitted(rule, pieces, most) == set(wanted)
    assert all(rule.parse(text) == value for text, value in wanted.items())


@pytest.mark.parametrize("mark", ["aba", "aab", "aa", "b", "abab"])
def test_the_first_mark_ends_a_string(mark: str) -> None:
    """Marks that begin as they end, or go on where they begin: the first one that is whole ends the string."""
    for schema, most in (({"type": "string"}, 99), ({"type": "string", "maxLength": 3}, 3)):
        rule = notated(schema, Values(mark, nested="own"))
        inner = {text: text.find(mark) for text in texts("ab", 9)}
        wanted = {mark + text for text, at in inner.items() if 0 <= at <= most and at + len(mark) == len(text)}
        assert admitted(rule, "ab", 9, mark) == wanted
        assert {rule.parse(text) for text in wanted} == {text[len(mark) : -len(mark)] for text in wanted}
    last = {mark + text for text in inner if text.endswith(mark)}
    assert wanted < last  # who reads up to the last mark reads other strings


@pytest.mark.parametrize("without", [("ab<", "ba"), ("aa", "baab"), ("<",), ("a<a", "<a<")])
def test_raw_strings_are_without_some_words(without: tuple[str, ...]) -> None:
    for schema, most in (({"type": "string"}, 6), ({"type": "string", "pattern": "^a", "maxLength": 4}, 4)):
        rule = notated(schema, CODER, *without)
        every = {text for text in texts("ab<", 6) if len(text) <= most and (most == 6 or text.startswith("a"))}
        wanted = {text for text in every if not any(word in text for word in without)}
        assert admitted(rule, "ab<", 6) == wanted
        assert all(rule.parse(text) == text for text in wanted)


def test_long_strings_need_no_search() -> None:
    for values, mark in ((GEMMA, MARK), (CODER, "")):
        rule = notated({"type": "string", "minLength": 2000}, values, *([] if mark else ["</parameter>"]))
        assert takes(rule, mark + "é<" * 1000 + mark) and not takes(rule, mark + "é<" * 999 + "a" + mark)


# -- all notations

ODD: Final = "'\"\\\n\t\x00\x1f<|>:,{}[]é😀\u2028\x7f /ud83d`"


def value_of(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(7 if depth else 5)
    if kind < 2:
        return "".join(rng.choices(ODD, k=rng.randrange(6)))
    if kind < 5:
        return [rng.randrange(-99, 99), rng.choice([True, False, None]), rng.choice([-2.5, 1.5e-7, 10**20])][kind - 2]
    size = rng.randrange(4)
    if kind == 5:
        return [value_of(rng, depth - 1) for _ in range(size)]
    return {"".join(rng.choices(ODD + "abc" * 9, k=3)): value_of(rng, depth - 1) for _ in range(size)}


@pytest.mark.parametrize("name", NOTATIONS)
@sized("num_values", 60, slow=3000)
def test_what_is_written_is_taken_and_read_back(name: str, num_values: int) -> None:
    rng, values, last, num = random.Random(name), NOTATIONS[name], None, 0
    rules = {kind: notated(schema, values) for kind, schema in ((True, {"type": "string"}), (False, {}))}
    not_a_string = notated({"not": {"type": "string"}}, values)
    for _ in range(num_values):
        value = value_of(rng)
        try:
            text = values.written(value)
        except ValueError:
            assert name == "gemma"  # some keys, and marks inside
            continue
        is_raw = values.text == "raw" and not isinstance(value, str)
        rule = not_a_string if is_raw else rules[values.text == "raw"]
        assert takes(rule, text), text
        assert json.dumps(rule.parse(text)) == json.dumps(value)
        constant = notated({"const": value}, values)
        assert takes(constant, text) and (text == last or last is None or not takes(constant, last)), (text, last)
        last, num = text, num + 1
    assert num > num_values / 4


@sized("num_values", 3, slow=40)
def test_all_ways_to_write_values_together(num_values: int) -> None:
    ways: Any = itertools.product(("raw", "json", "python", MARK, "'"), ("json", "python"), ("json", "python", "own"))
    num = 0
    for way in ways:
        values = Values(*way, *random.Random(repr(way)).choice([(), (",", ":")]))
        if values.text == "raw" and values.nested == "own":
            continue
        rules = [notated(schema, values) for schema in ({"not": {"type": "string"}}, {"type": "string"})]
        rng = random.Random(repr(way))
        for value in [value_of(rng) for _ in range(num_values)]:
            with contextlib.suppress(ValueError):
                text = values.written(value)
                num += 1
                rule = rules[isinstance(value, str)]
                assert takes(rule, text) and json.dumps(rule.parse(text)) == json.dumps(value), (values, text)
    assert num > 15 * num_values


@needs_corpus
@pytest.mark.parametrize("values", [PYTHON, GEMMA], ids=["python", "gemma"])
@sized("num_schemas", 15, slow=500)
def test_real_schemas_admit_the_same_values(values: Values, num_schemas: int) -> None:
    num = {True: 0, False: 0}
    for row in sample(num_schemas, 11, 8000):
        plain = JsonSchema(row["schema"])
        try:
            plain.root()
            rule = Notated(plain, values)
            rule.root()
        except ConstraintError:
            continue
        for case in row["tests"]:
            with contextlib.suppress(ValueError):
                text = values.written(case["data"])
                is_admitted = takes(plain, json.dumps(case["data"], ensure_ascii=False))
                assert takes(rule, text) == is_admitted, (row["id"], text)
                num[is_admitted] += 1
    assert min(num.values()) > num_schemas / 8


@few(8)
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("values", [PYTHON, GEMMA], ids=["python", "gemma"])
@sized("num_states", 6, slow=60)
def test_masks_are_what_bytes_say(name: str, values: Values, num_states: int) -> None:
    extra = [b"'", b"':", b"','", b"\\'", b"'}", b"True", b"None,", b'<|"', b'"|>', b"|>,", b"{a:", b'a<|"|>', b"\\x0"]
    vocabulary = byte_vocabulary([*filter(None, adversarial_vocabulary().token_bytes), *extra])
    for seed in range(2):
        compare(notated(SCHEMAS[name], values), vocabulary, random.Random(seed), num_states)


@pytest.mark.parametrize("values", [PYTHON, GEMMA], ids=["python", "gemma"])
def test_texts_end_in_time(values: Values) -> None:
    rng, vocabulary = random.Random(3), adversarial_vocabulary()
    for name in ("nested", "any JSON"):
        for _ in range(3):
            matcher = budgeted.matcher_of(notated(budgeted.RULES[name], values), vocabulary)
            budgeted.walk(matcher, vocabulary, rng, rng.randrange(10))
            assert budgeted.compare(matcher, vocabulary, list(range(vocabulary.size)), frozenset()) == 0


TRIP: Final = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "kind": {"enum": ["it's", 'a "b"', 3, True, None, {"k": [False]}]},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 3},
        "next": {"$ref": "#"},
    },
    "required": ["city"],
    "additionalProperties": {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^[a-z]+$"}]},
}  # fmt: skip


def test_dicts_of_python() -> None:
    check_language(
        notated(TRIP, PYTHON),
        accepts=[
            "{'city': 'Bern'}",
            '{"city": "Bern", \'days\': 14}',
            "{'city':'','kind':\"it's\"}",
            r"{'city': 'it\'s', 'kind': 'it\'s', 'tags': ['a', " + '"b"]}',
            "{'city': 'a', 'kind': {'k': [False]}, 'next': {\"city\": 'b', 'next': {'city': 'c'}}}",
            "{'city': '', 'kind': None, 'x': True, \"y\": 'abc'}",
            "{'city': '', 'kind': null, 'x': true}",  # the words of JSON, too
            "{\n  'city': 'a\"b',\n  'tags': ['a', 'b']\n}",
        ],
        rejects=[
            "{}", "{'city': Bern}", "{'city': 'Bern\"}", "{'city': '', 'days': 15}", "{'city': '', 'days': 1.0}",
            "{'city': '', 'city': ''}", "{'city': '', 'x': true, \"x\": True}", "{'city': '', 'tags': ['a', \"a\"]}",
            "{'city': '', 'x': 'A'}", "{'city': '', 'kind': TRUE}", "{'city': '',}", "{city: ''}", "dict(city='')",
            "{'city': '012345678'}", r"{'city': '\q'}", "{'city': 'a\nb'}",
        ],
    )  # fmt: skip


def test_objects_with_marks() -> None:
    check_language(
        notated(TRIP, GEMMA),
        accepts=[
            f"{{city:{MARK}Bern{MARK}}}",
            f"{{city:{MARK}<|\"|{MARK},kind:{MARK}it's{MARK}}}",
            f'{{city:{MARK}\\\n"{MARK},kind:{{k:[false]}},next:{{city:{MARK}{MARK}}}}}',
            f"{{city:{MARK}{MARK},tags:[{MARK}a{MARK},{MARK}b{MARK}],a b:true,c.d-1:{MARK}x{MARK}}}",
            f"{{city: {MARK}{MARK}, days: 3}}",
        ],
        rejects=[
            f'{{"city":{MARK}{MARK}}}', '{city:"Bern"}', f"{{city:{MARK}{MARK},days:{MARK}3{MARK}}}",
            f"{{city:{MARK}{MARK},kind:True}}", f"{{city:{MARK}{MARK},tags:[{MARK}a{MARK},{MARK}a{MARK}]}}",
            f"{{city:{MARK}{MARK},x:true,x:true}}", f"{{city:{MARK}{MARK}, :true}}", f"{{city:{MARK}{MARK},x :true}}",
            f"{{city:{MARK}012345678{MARK}}}", f"{{city :{MARK}{MARK}}}",
        ],
    )  # fmt: skip


def test_single_values() -> None:
    check_language(
        notated({"type": ["boolean", "null", "array", "integer"]}, CODER),
        accepts=["True", "None", "false", '[true, "a", {"b": null}]', "12"],
        rejects=["[True]", "['a']", '"a"', "a", "1.5", "True "],
    )
    check_language(
        notated({"enum": ["a", "</x>b", 'c"\\\n', "d</"]}, CODER, "</x>"),
        accepts=["a", 'c"\\\n', "d</"],
        rejects=["</x>b", '"a"', "", "d</x"],
    )
    ascii_letters = notated({"const": {"ü": ["\n"]}}, Values(is_ascii=True))
    check_language(ascii_letters, accepts=['{"\\u00fc": ["\\n"]}', '{"ü":["\\n"]}'], rejects=["{'ü':['\\n']}"])


# -- guards, types, refusals


def test_guards_judge_the_value() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "object"}}
    for values, good, bad in (
        (PYTHON, "[{'a': 1}, {'a': True}]", "[{'a': 1}, {\"a\": 1}]"),
        (GEMMA, "[{a:1},{b:1}]", f"[{{a:{MARK}é{MARK}}},{{a:{MARK}é{MARK}}}]"),
    ):
        guard = notated(schema, values).guard()
        assert guard is not None and guard.refuses(good.encode()) is None
        refusal = guard.refuses(bad.encode())
        assert refusal is not None and bad.encode()[: refusal.keep] == bad[: bad.index("}") + 1].encode()
    assert notated({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, PYTHON).guard() is None
    is_email = notated({"type": "string", "format": "idn-hostname"}, PYTHON, format="assert").guard()
    assert is_email is not None
    refusal = is_email.refuses("'a-ü-ß--'".encode())
    assert refusal is not None and refusal.keep == 1


def test_values_of_types() -> None:
    class Point(BaseModel):
        x: int
        name: str = "origin"

    rule = notated(Point, PYTHON)
    assert takes(rule, "{'x': 3, 'name': \"it's\"}") and not takes(rule, "{'x': '3'}")
    assert rule.parse("{'x': 3, 'name': \"it's\"}") == Point(x=3, name="it's")
    assert rule == notated(Point, PYTHON) != notated(Point, GEMMA)


@pytest.mark.parametrize(
    ("schema", "values", "message"),
    [
        ({"properties": {"a:b": {}}}, GEMMA, "the key 'a:b'"),
        ({"required": [""]}, GEMMA, "the key ''"),
        ({"type": "object", "required": ["a "], "maxProperties": 1}, GEMMA, "the key 'a '"),
        ({"items": {"const": {"a{": 1}}}, GEMMA, "the key 'a{'"),
        ({"anyOf": [{"const": f"a{MARK}"}, {}]}, GEMMA, rf"holds '{re.escape(MARK)}'"),
        ({"type": "string", "pattern": '<\\|"\\|>'}, GEMMA, "no"),
        ({"type": ["string", "integer"]}, CODER, "cannot be told"),
        ({"const": "</x>"}, CODER, "no string fits"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(schema: Any, values: Values, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        Notated(JsonSchema(schema), values, ("</x>",) if values.text == "raw" else ()).root()
    Notated(JsonSchema(schema), PYTHON).root()


@pytest.mark.parametrize(
    ("values", "options", "without", "at"),
    [
        (Values("[[", nested="own"), {}, (), "text"),
        (Values(""), {}, (), "text"),
        (Values("raw", nested="own"), {}, (), "nested"),
        (Values("python", is_ascii=True), {}, (), "is_ascii"),
        (PYTHON, {"escapes": "any"}, (), "escapes"),
        (PYTHON, {}, ("a",), "without"),
        (CODER, {}, ("",), "without"),
    ],
)
def test_options_that_have_no_effect_are_refused(values: Values, options: Any, without: Any, at: str) -> None:
    with pytest.raises(OptionError) as found:
        notated({}, values, *without, **options)
    assert found.value.at == at


def test_the_writer_refuses_what_no_reader_finds_again() -> None:
    for values, value in ((GEMMA, f"a{MARK}"), (GEMMA, {"a:b": 1}), (Values("aba"), "ab"), (PYTHON, [float("nan")])):
        with pytest.raises(ValueError, match=r"cannot be written|which ends a string|JSON compliant"):
            values.written(value)
