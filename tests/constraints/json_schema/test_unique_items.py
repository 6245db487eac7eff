"""`uniqueItems`: scalars in the mask, by value; objects and arrays by the guard; and what is finite is counted."""

import itertools
import json
import random
from typing import Any

import pytest

from decodekit.constraints.author.coverage import check
from decodekit.constraints.engine.automaton import Automaton
from decodekit.constraints.engine.recogniser import Recogniser
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.frames.arrays import ArrayPlan
from decodekit.constraints.json_schema.values.inhabited import have_representatives
from decodekit.errors import UnsatisfiableError
from decodekit.testing import check_language
from tests.reference import json_schema as reference
from tests.reference.any_json import any_json
from tests.reference.json_network import SlowNetwork, accepts, is_admitted
from tests.sizes import few

UNIQUE: dict[str, Any] = {"type": "array", "uniqueItems": True}
D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"

IN_MASK: list[tuple[Any, list[str], list[str]]] = [
    (
        {**UNIQUE, "items": {"type": "string"}},
        ["[]", '["a"]', '["a","b","A"]', '["a","aa"]', '["","\\u0061"]'],
        ['["a","a"]', '["a","\\u0061"]', '["\\/","/"]', '["é","b","\\u00e9"]', '["😀","\\ud83d\\uDE00"]'],
    ),
    # every beginning can be completed in many ways
    (
        {**UNIQUE, "items": {"type": ["string", "null"], "pattern": "[ab]{2}", "minLength": 1}, "minItems": 2},
        ['["ab","aab",null]', '["ab","xab","abx"]', '[null,"ba","\\u0061b"]'],
        ['["ab"]', '["ab","a"', '["ab","ba","ab"', '["ab","\\u0061b"', '["aa",null,null'],
    ),
    ({**UNIQUE, "items": {"type": "string", "pattern": "^a+$"}}, ['["a","aa","aaa"]'], ['["aa","aa"', '["a","b']),
    # some beginnings cannot: they are gone with what they begin
    (
        {**UNIQUE, "items": {"type": "string", "pattern": "^a(bc|d*)$"}},
        ['["abc","a","add"]', '["ad","abc"]'],
        ['["abc","ab', '["a","abc",null', '["ad","ad"'],
    ),
    (
        {**UNIQUE, "items": {"type": ["number", "boolean", "null"]}},
        ["[1,true,0,false,null]", "[1,-1,1.5,10]", "[1e2,1e3]"],
        ["[1,1.0]", "[100,2,1e2]", "[0,-0]", "[0.5,5e-1]", "[50e-1,5]", "[true,1,true]", "[null,null]", "[-0.0,0]"],
    ),
    ({"$schema": D4, **UNIQUE, "items": {"type": "integer"}}, ["[1,2]"], ["[1,1]", "[1,1.0]"]),
    ({"items": {"type": "null"}, "uniqueItems": True}, ["[]", "[null]", "3"], ["[null,null]"]),
    # what the items are left with is enough for what must still come
    ({**UNIQUE, "items": {"enum": ["a", "b"]}, "minItems": 2}, ['["a","b"]', '["b","a"]'], ['["a"]', '["a","a"]']),
    ({**UNIQUE, "items": {"type": "boolean"}}, ["[true,false]"], ["[true,false,true]", "[true,false,"]),
    (
        {**UNIQUE, "prefixItems": [{"enum": [1, 2]}, {"const": 1.0}], "items": {"type": "integer"}, "minItems": 2},
        ["[2,1]", "[2,1.0,3]"],
        ["[1,1]", "[1", "[2,1,2]", "[2]"],
    ),
    (
        {
            **UNIQUE,
            "prefixItems": [{"type": "string"}, {"enum": ["a", "b"]}, {"enum": ["b", "a"]}],
            "items": {"type": "null"},
            "minItems": 3,
        },
        ['["c","a","b"]', '["","b","a",null]'],
        ['["a"', '["b"', '["c","a","a"]'],
    ),
    (
        {
            **UNIQUE,
            "items": {"type": "integer", "minimum": 1, "maximum": 4},
            "contains": {"maximum": 2},
            "minContains": 2,
        },
        ["[1,2]", "[3,2,4,1]"],
        ["[1]", "[1,1]", "[3,4,2]"],
    ),
    (
        {**UNIQUE, "items": {"type": "integer"}, "contains": {"const": 5}, "maxItems": 2},
        ["[5]", "[4,5]", "[5,6]"],
        ["[4]", "[5,5]", "[4,6]"],
    ),
    # one object and one array cannot equal anything else
    (
        {**UNIQUE, "prefixItems": [{"type": "object"}, {"type": ["array", "string"]}], "items": {"type": "string"}},
        ['[{},[],"a"]', '[{"a":1},"a","b"]', '[{},"a"]'],
        ['[{},"a","a"]', '[{},[],"a","a"]', "[{},[],{}]"],
    ),
    ({"$schema": D7, **UNIQUE, "items": [{"type": "object"}], "additionalItems": False}, ["[{}]", "[]"], ["[{},{}]"]),
    # denied: two items are equal
    (
        {"items": {"type": "string"}, "not": {"uniqueItems": True, "items": {"type": "string"}}},
        ['["a","a"]', '["a","b","\\u0061"]', '["a","b","b","c"]'],
        ['["a"]', '["a","b"]', "[]", "3"],
    ),
    (
        {
            "prefixItems": [{"type": "string"}, {"const": "a"}],
            "maxItems": 2,
            "not": {"items": {"type": "string"}, "prefixItems": [{"type": "string"}] * 2, "uniqueItems": True},
        },
        ['["a","a"]', '["\\u0061","a"]'],
        ['["b"', '["a"]', '["a","a","a"]'],
    ),
    (
        {"if": {"items": {"type": "integer"}, "uniqueItems": True}, "then": {"maxItems": 1}},
        ["[1]", "[1,1]", "[1,2,1.0]", '["a","b"]', "3"],
        ["[1,2]"],
    ),
]

BY_GUARD: list[tuple[Any, list[str], list[str]]] = [
    (UNIQUE, ["[]", "[[],{}]", '[{"a":1},{"a":2}]', "[[1],[true]]"], ["[{},{}]", '[{"a":1,"b":2},{"b":2,"a":1.0}]']),
    (UNIQUE, ['[1,true,"1",[1]]'], ["[1,1]", "[[1],[true],[1.0]]"]),
    ({"not": {"uniqueItems": True}}, ["[[1],[1]]", "[1,2,1]"], ["[[1],[2]]", "[]", "3"]),
    (
        {"anyOf": [{"uniqueItems": True, "minItems": 2}, {"items": {"type": "object"}}]},
        ["[{},{}]", "[[],{}]", "[]"],
        ["[[],[]]", "[[]]"],
    ),
    ({"oneOf": [{"uniqueItems": True}, {"maxItems": 2}]}, ["[[],[]]", "[[],[1],1]"], ["[[],[1]]", "[[],[],[]]"]),
    (
        {"properties": {"a": {"$ref": "#/$defs/set"}}, "$defs": {"set": UNIQUE}},
        ['{"a":[{}]}', '{"b":[1,1]}'],
        ['{"a":[{},{}]}'],
    ),
]


def is_alive(rule: JsonSchema, text: str) -> bool:
    return SlowNetwork(rule).feed(text.encode())


@pytest.mark.parametrize(("schema", "good", "bad"), IN_MASK)
def test_in_the_mask(schema: Any, good: list[str], bad: list[str]) -> None:
    rule = any_json(schema)
    assert rule.guard() is None
    for text in good:
        assert accepts(rule, text.encode()), text
    for text in bad:
        assert not accepts(rule, text.encode()), text
        if not text.endswith(("]", "3")):
            assert not is_alive(rule, text), text


@pytest.mark.parametrize(("schema", "good", "bad"), BY_GUARD)
def test_by_the_guard(schema: Any, good: list[str], bad: list[str]) -> None:
    rule = any_json(schema)
    assert rule.guard() is not None
    for text in good:
        assert is_admitted(rule, text.encode()), text
    for text in bad:
        assert not is_admitted(rule, text.encode()), text


def test_scalars_beside_objects_are_in_the_mask() -> None:
    rule = any_json({**UNIQUE, "items": {"type": ["object", "string"]}})
    assert is_alive(rule, '["a",{},"b",{}') and accepts(rule, b'["a",{},{}]')
    assert not is_alive(rule, '["a",{},"\\u0061"')


@few(1)
@pytest.mark.parametrize(
    ("items", "good", "bad"),
    [
        (
            {"enum": ["a", "b", 1, None]},
            ['["a","b"]', "[1,null]", '[null,"a",1.0,"b"]'],
            ['["a"]', '["a","a"]', "[1,1.0]"],
        ),
        (
            {"type": "string"},
            ['["a","b"]', '["a","ab","b"]', '["","\\u0061"]'],
            ['["a"]', '["a","a"]', '["a","\\u0061","b"]'],
        ),
        (
            {"type": "string", "pattern": "b", "minLength": 2},
            ['["ab","bb"]', '["ab","aab","b\\u0062"]'],
            ['["ab"]', '["ab","ab"]', '["ab","\\u0061b","bb"]', '["ab","b"]'],
        ),
        (True, ['[1,"1"]', '["a",[],{}]', '["a",1,"b"]'], ['["a","a"]', '["a",1,"a"]', '["b",1,"a",1]', "[null,null]"]),
    ],
)
def test_masks_agree_with_validation(items: Any, good: list[str], bad: list[str]) -> None:
    rule = any_json({**UNIQUE, "items": items, "minItems": 2}, whitespace="compact")
    check_language(rule, accepts=good, rejects=bad)


def test_the_guard_is_part_of_the_exact_mask() -> None:
    rule = any_json({**UNIQUE, "items": {"type": "object"}}, whitespace="compact")
    check_language(rule, accepts=["[{}]", '[{},{"a":1}]'], rejects=["[{},{}]", '[{"a":1},{"a":1.0}]'])


def test_what_no_array_fits() -> None:
    for schema, words in [
        ({**UNIQUE, "items": {"enum": ["a", "b"]}, "minItems": 3}, "3 different items, which have 2 values"),
        ({**UNIQUE, "items": {"enum": [1, 1.0, "a"]}, "minItems": 3}, "2 values"),
        ({**UNIQUE, "items": {"type": "integer", "minimum": 1, "maximum": 9}, "minItems": 10}, "9 values"),
        ({**UNIQUE, "items": {"pattern": "^[ab]?$", "type": "string"}, "minItems": 4}, "3 values"),
        ({**UNIQUE, "prefixItems": [{"const": 1}, {"const": 1.0}], "minItems": 2}, "cannot hold for the items"),
        ({**UNIQUE, "not": {"items": {"type": "string"}, "uniqueItems": True}, "items": {"type": "string"}}, ""),
        ({**UNIQUE, "items": {"enum": [1, 2]}, "contains": {"const": 1}, "minContains": 2}, ""),
        ({"type": "array", "maxItems": 1, "not": {"uniqueItems": True}}, ""),
    ]:
        with pytest.raises(UnsatisfiableError) as caught:
            any_json(schema).root()
        assert words in str(caught.value), schema
    assert accepts(any_json({**UNIQUE, "items": {"enum": list(range(40))}, "minItems": 40}), b"[1]") is False


def test_many_items_of_few_values_stay_quick() -> None:
    schema = {**UNIQUE, "items": {"type": "integer", "minimum": 1, "maximum": 60}, "minItems": 60}
    text = json.dumps(random.Random(0).sample(range(1, 61), 60), separators=(",", ":")).encode()
    assert accepts(any_json(schema, whitespace="compact"), text)
    with pytest.raises(UnsatisfiableError):
        any_json({**schema, "minItems": 10**6}).root()


def test_large_sets_stay_quick() -> None:
    names = [f"value{number}" for number in range(20_000)]
    rule = any_json({**UNIQUE, "items": {"enum": names}, "minItems": 20_000})
    assert is_alive(rule, '["value17","value18"') and not is_alive(rule, '["value17","value17"')
    shifted = [{"enum": [number, number + 1, number + 2]} for number in range(300)]
    rule = any_json({**UNIQUE, "prefixItems": shifted, "minItems": 300}, whitespace="compact")
    assert is_alive(rule, "[2,1,3") and not is_alive(rule, "[2,1,2")


def test_what_the_guard_keeps_can_go_on() -> None:
    rule = any_json({"properties": {"a": UNIQUE, "b": {}}}, order="any")
    guard = rule.guard()
    assert guard is not None
    for text, kept, at in [
        ('{"b":1, "a": [{"x":1}, [2] , { "x" : 1.0 }, 7]}', '{"b":1, "a": [{"x":1}, [2]', "/a/2"),
        ('{"a":[[],[]],"b":[1,1]}', '{"a":[[]', "/a/1"),
    ]:
        refusal = guard.refuses(text.encode())
        assert refusal is not None and refusal.at == at
        assert text.encode()[: refusal.keep].decode() == kept
        assert "#/properties/a/uniqueItems" in refusal.message
        assert is_alive(rule, kept + ",")
    assert guard.refuses(b'{"a":[1],"b":[[],[]]}') is None
    denying = any_json({"not": {"uniqueItems": True}}).guard()
    assert denying is not None
    refusal = denying.refuses(b"[1,[]]")
    assert refusal is not None and refusal.keep == len(b"[1,[]")


def test_a_guard_only_where_items_can_be_compound() -> None:
    for schema, has_guard in [
        ({}, False),
        ({"uniqueItems": False}, False),
        ({"type": "array", "maxItems": 1, "uniqueItems": True}, False),
        ({"type": "array", "$defs": {"a": {"uniqueItems": True}}}, False),
        ({"$ref": "#/$defs/a", "uniqueItems": True, "$defs": {"a": {"items": {"type": "string"}}}}, False),
        ({"properties": {"uniqueItems": {"type": "array"}}}, False),
        ({**UNIQUE, "items": {"type": ["string", "object"]}}, True),
        ({**UNIQUE, "prefixItems": [{"type": "string"}]}, True),
    ]:
        assert (any_json(schema).guard() is not None) == has_guard, schema


def test_coverage() -> None:
    found = check({"properties": {"a": {**UNIQUE, "items": {"type": "string"}}, "b": UNIQUE}})
    assert found.is_supported
    statuses = {entry.pointer: entry.status for entry in found.keywords if entry.keyword == "uniqueItems"}
    assert statuses == {"#/properties/a/uniqueItems": "mask", "#/properties/b/uniqueItems": "guard"}
    assert "1 by a guard" in str(found) and "by a guard" not in str(check({"type": "array"}))


def random_schema(rng: random.Random) -> Any:
    """An array of scalars, mostly from few values, with `uniqueItems`; sometimes denied."""

    def item() -> Any:
        values = [None, True, False, 0, 1, 2, "", "a", "b"]
        return rng.choice(
            [
                {"enum": rng.sample(values, rng.randint(1, 3))},
                {"type": ["boolean", "null"]},
                {"type": "integer", "minimum": 0, "maximum": rng.randint(0, 3)},
                {"type": "string", "maxLength": 1, "pattern": "^[ab]*$"},
                {"type": "string"},
                {"type": ["number", "string"]},
            ]
        )

    schema: dict[str, Any] = {"items": item()}
    if rng.random() < 0.6:
        schema["prefixItems"] = [item() for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.5:
        schema["minItems"] = rng.randint(1, 4)
    if rng.random() < 0.3:
        schema["maxItems"] = rng.randint(1, 4)
    if rng.random() < 0.4:
        schema |= {"contains": item(), "minContains": rng.randint(0, 2)}
        schema |= {"maxContains": rng.randint(1, 2)} if rng.random() < 0.4 else {}
    if rng.random() < 0.7:
        return {**schema, "uniqueItems": True}
    plain = {"items": schema["items"], "prefixItems": schema.get("prefixItems", [True])}
    return {**schema, "not": {**plain, "uniqueItems": True}}


def random_array(rng: random.Random) -> Any:
    return [rng.choice([None, True, False, 0, 1, 2, "", "a", "b", 1.5]) for _ in range(rng.randint(0, 5))]


def liveness(rule: JsonSchema, text: bytes) -> list[bool]:
    """For each start of a text, whether it is the start of an accepted one."""
    network = SlowNetwork(rule)
    return [network.feed(text[index : index + 1]) for index in range(len(text))]


@pytest.mark.parametrize("block", range(3))
def test_against_the_specification(block: int) -> None:
    """Arrays at random are accepted exactly when they are valid, and what is alive can be completed.

    The second by hand: a start of an array that is alive up to an item has a valid array with that start among all
    arrays of the small values and a few fresh ones. (Seeded: fails always or never.)
    """
    num_valid = num_alive = 0
    for seed in range(40):
        rng = random.Random(1000 * block + seed)
        schema = random_schema(rng)
        rule = any_json(schema, whitespace="compact")
        oracle = reference.Validator(json.loads(json.dumps(schema)))
        arrays = [random_array(rng) for _ in range(15)]
        try:
            rule.root()
        except UnsatisfiableError:
            assert not any(oracle.is_valid(array) for array in arrays), schema
            continue
        assert rule.guard() is None or "not" in schema
        for array in arrays:
            text = json.dumps(array, separators=(",", ":")).encode()
            is_valid = oracle.is_valid(reference.load(text.decode()))
            assert is_admitted(rule, text) == is_valid, (schema, array)
            num_valid += is_valid
        if "contains" in schema or rule.guard() is not None:
            continue
        array = reference.load(json.dumps(arrays[0]))[:2]
        start = json.dumps(array, separators=(",", ":"), default=float)[:-1]
        if array and is_alive(rule, start + ","):
            num_alive += 1
            pool = [None, True, False, 0, 1, 2, 3, "", "a", "b", "fresh"]
            longer = ([*array, *more] for count in range(1, 4) for more in itertools.product(pool, repeat=count))
            assert any(oracle.is_valid(other) for other in longer), (schema, start)
    assert num_valid > 10 and num_alive > 0


def test_the_comparison_notices_a_missing_keyword() -> None:
    """A negative control: without the keyword the engine and the oracle differ."""
    rule = any_json({"items": {"type": "integer"}})
    oracle = reference.Validator({"items": {"type": "integer"}, "uniqueItems": True})
    assert any(is_admitted(rule, json.dumps(v).encode()) != oracle.is_valid(v) for v in ([1], [1, 1]))


def test_representatives_against_all_choices() -> None:
    rng = random.Random(5)
    answers = []
    for _ in range(300):
        sets = [frozenset(("number", rng.randint(0, 5)) for _ in range(rng.randint(1, 4))) for _ in range(4)]
        counts = [rng.randint(1, 2) for _ in sets]
        places = [values for values, count in zip(sets, counts, strict=True) for _ in range(count)]
        expected = any(len(set(choice)) == len(places) for choice in itertools.product(*places))
        assert have_representatives(list(zip(sets, counts, strict=True))) == expected
        answers.append(expected)
    assert 30 < sum(answers) < 270


def test_what_is_left_of_a_list_has_no_lexical_states_of_its_own() -> None:
    words = [f"word{number:02}" for number in range(40)]
    rule = any_json({"type": "array", "uniqueItems": True, "items": {"enum": [*words, 7]}}, whitespace="compact")
    recogniser = Recogniser(rule.root(), Automaton())
    text = json.dumps(words[:4], separators=(",", ":"))[:-1].encode()
    state = recogniser.read(recogniser.root, text)
    assert state is not None
    before = recogniser.automaton.num_states
    for word in [*words[5:30], 7]:
        state = recogniser.read(state, b"," + json.dumps(word).encode())
        assert state is not None
    assert recogniser.automaton.num_states <= before + 10  # the number and its neighbours
    for gone in ("word00", "word29", "\\u0077ord07"):
        assert recogniser.read(state, f',"{gone}"'.encode()) is None
    assert recogniser.read(state, b',"word30"]') is not None


def test_strings_that_are_used_have_no_lexical_states_of_their_own() -> None:
    rule = any_json({**UNIQUE, "items": {"type": "string", "pattern": "[ab]"}}, whitespace="compact")
    recogniser = Recogniser(rule.root(), Automaton())
    state = recogniser.read(recogniser.root, b'["first b","second a"')
    assert state is not None
    before = recogniser.automaton.num_states
    for number in range(20):
        state = recogniser.read(state, f',"{number} ab"'.encode())
        assert state is not None
    assert recogniser.automaton.num_states <= before + 20  # the digits are new, what was read is not
    for gone in ("first b", "7 ab", "\\u0037 ab"):
        assert recogniser.read(state, f',"{gone}"'.encode()) is None
    assert recogniser.read(state, b',"20 ab"]') is not None


def test_strings_that_few_complete_have_to_be_told_apart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: asked at their ends alone, they leave a beginning with nothing behind it."""
    schema = {**UNIQUE, "items": {"type": "string", "pattern": "^a(bc|d*)$"}}
    assert not is_alive(any_json(schema), '["abc","ab')
    monkeypatch.setattr(ArrayPlan, "_is_endless", lambda plan, strings: True)
    assert is_alive(any_json({**schema, "title": "another"}), '["abc","ab')


def test_a_list_with_surrogate_pairs() -> None:
    rule = any_json({"type": "array", "uniqueItems": True, "items": {"enum": ["🙂", "🙃", "a🙂", 1]}})
    good = ['["🙂","🙃",1]', '["\\ud83d\\ude42", "a🙂"]', "[]"]
    check_language(rule, accepts=good, rejects=['["🙂","\\ud83d\\ude42"]', '["a"]', '["🙃","🙃"]'])
