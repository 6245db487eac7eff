"""What is kept on disk is what would be made anew; whatever is damaged, misplaced or unwritable is made anew."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from decodekit.constraints.engine import disk_store as store
from decodekit.constraints.engine import token_index
from decodekit.constraints.engine.automaton import Automaton, begin_epoch
from decodekit.constraints.engine.bitmask import allocate_bitmask, ids_from_bitmask
from decodekit.constraints.engine.disk_store import Store
from decodekit.constraints.engine.token_index import TokenIndex, Walk, all_tokens
from decodekit.constraints.engine.trie import TokenTrie
from decodekit.constraints.json_schema import JsonSchema
from decodekit.constraints.json_schema.strings import text
from decodekit.constraints.json_schema.strings.string_escapes import Escapes, spelled
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.constraints.language.registry import named, register
from decodekit.constraints.matching.compiler import CompiledGrammar
from decodekit.vocabulary import Vocabulary
from tests.reference import masks
from tests.reference import walk as reference
from tests.reference.vocabularies import adversarial_vocabulary, byte_vocabulary, random_vocabulary
from tests.sizes import few

VOCABULARIES = {
    "adversarial": adversarial_vocabulary(),
    "bytes": byte_vocabulary(),
    "random": random_vocabulary(random.Random(0), b'ab"\\', 300),
    "long": Vocabulary([b"a" * 300, b"a" * 299, b"b", b'"'], []),
    "none": Vocabulary([None], [0]),
}
ARRAYS = {
    "numbers": np.arange(7, dtype=np.int32),
    "bytes": np.array([[1, 2], [3, 255]], np.uint8),
    "none": np.zeros((0, 3), np.int64),
}
STRING = ir.concat(text.BODY, text.QUOTE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(token_index, "MIN_TOKENS_KEPT", 0)
    return tmp_path / "cache"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def indices(vocabulary: Vocabulary) -> tuple[TokenIndex, ...]:
    """As in a new process: nothing is remembered."""
    token_index._tries.cache_clear()
    every = all_tokens.__wrapped__(vocabulary)
    return (every.whole, *every.by_length)


def contents(walk: Walk, automaton: Automaton) -> tuple[object, ...]:
    """What a walk says, with labels for the numbers that an automaton gave them."""
    groups = [
        {automaton.label_sets[number]: exits[kind].tolist() for number, exits in walk.exits.items() if len(exits[kind])}
        for kind in (0, 1)
    ]
    inside = None if walk.inside is None else walk.inside.tolist()
    return inside, groups, {automaton.label_sets[number] for number in walk.exits}, walk.is_complete


def test_what_is_loaded_is_what_was_saved() -> None:
    kept = Store("subject", "1")
    assert kept.load("name") is None
    assert kept.save("name", ARRAYS)
    loaded = kept.load("name")
    assert loaded is not None and list(loaded) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape
        assert np.array_equal(loaded[name], array) and loaded[name].flags.writeable and loaded[name].flags.aligned
    assert Store("other", "1").load("name") is None and Store("subject", "2").load("name") is None


def test_damage_is_noticed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Store("subject", "1")
    kept.save("name", ARRAYS)
    (path,) = files(folder)
    whole = path.read_bytes()
    places = [*range(0, len(whole), 9), len(whole) - 1]
    for place in places:
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :])
        assert kept.load("name") is None, place
    for length in places:
        path.write_bytes(whole[:length])
        assert kept.load("name") is None, length
    assert len(caplog.records) == 2 * len(places)
    assert all(record.levelno == logging.WARNING and str(path) in record.getMessage() for record in caplog.records)
    path.write_bytes(whole)
    assert kept.load("name") is not None


def test_a_file_in_the_place_of_another_is_noticed(folder: Path) -> None:
    Store("subject", "1").save("one", ARRAYS)
    (path,) = files(folder)
    path.rename(path.with_name("other.arrays"))
    assert Store("subject", "1").load("other") is None


def test_old_files_of_others_are_deleted_and_nothing_else(folder: Path) -> None:
    long_ago = time.time() - 40 * 86_400
    old, recent, own = Store("old", "1"), Store("recent", "1"), Store("own", "2")
    for kept in (old, recent, own):
        kept.save("name", ARRAYS)
    strange = folder / "1" / "old" / "notes.txt"
    strange.write_text("not ours")
    gone = Store("gone", "0")
    gone.save("name", ARRAYS)
    for path in (*files(folder), folder / "1"):
        if path != recent.path("name"):
            os.utime(path, (long_ago, long_ago))
    own.save("other", ARRAYS)
    assert old.load("name") is None and gone.load("name") is None and not (folder / "0").exists()
    assert recent.load("name") is not None and own.load("name") is not None and strange.exists()


def test_nothing_is_kept_where_that_is_off_or_impossible(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = Store("subject", "1")
    monkeypatch.setenv(store.VARIABLE, "off")
    assert store.root() is None and not kept.save("name", ARRAYS) and kept.load("name") is None
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "file"))
    assert not kept.save("name", ARRAYS) and kept.load("name") is None
    monkeypatch.setenv(store.VARIABLE, str(folder))

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "replace", refuse)
    assert not kept.save("name", ARRAYS) and kept.load("name") is None
    assert files(folder) == []  # nothing half written is left
    vocabulary = VOCABULARIES["adversarial"]
    assert all(index.trie.num_nodes for index in indices(vocabulary))


def test_the_folder_is_the_platforms_or_the_chosen_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path))
    assert store.root() == tmp_path
    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.root() == tmp_path / "xdg" / "decodekit"


def test_writers_do_not_meet() -> None:
    kept = Store("subject", "1")
    failures: list[int] = []

    def write(number: int) -> None:
        for _ in range(30):
            assert kept.save("name", {"a": np.full(1000, number, np.int32)})
            loaded = kept.load("name")
            if loaded is None or len(set(loaded["a"].tolist())) != 1:
                failures.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_kept_trie_is_the_trie(name: str, folder: Path) -> None:
    vocabulary = VOCABULARIES[name]
    made = indices(vocabulary)
    assert len(files(folder)) == 3
    for one, other in zip(made, indices(vocabulary), strict=True):
        for slot in TokenTrie.__slots__:
            assert np.array_equal(getattr(one.trie, slot), getattr(other.trie, slot)), slot
            if slot != "max_depth":
                assert getattr(one.trie, slot).dtype == getattr(other.trie, slot).dtype
    plain = TokenTrie.build_all(vocabulary, [(1, None)])[0]
    assert np.array_equal(plain.end, made[0].trie.end) and np.array_equal(plain.tokens, made[0].trie.tokens)


@few(8)
@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("escapes", ["any", "needed"])
@pytest.mark.parametrize("node", [STRING, ir.concat(text.length(1, None), text.QUOTE)], ids=["free", "not empty"])
def test_a_kept_walk_is_the_walk(name: str, node: Node, escapes: Escapes, folder: Path) -> None:
    vocabulary = VOCABULARIES[name]
    first, second = Automaton(), Automaton()
    second.state(ir.accept("a label that changes the numbers"))
    second.state(ir.concat(text.QUOTE, ir.accept("other")))
    for label in (None, "value"):
        labelled = spelled(ir.concat(node, ir.accept(label)), escapes)
        for index, other in zip(indices(vocabulary), indices(vocabulary), strict=True):
            made, kept = (
                contents(one.walk(automaton, automaton.state(labelled)), automaton)
                for one, automaton in ((index, first), (other, second))
            )
            assert made == kept
            state = first.state(labelled)
            expected = reference.walk(first, index.trie, state, vocabulary.size, np.ones(256, np.uint8))
            walk = index.walk(first, state)
            assert sum(len(nodes) for exits in walk.exits.values() for nodes in exits) == len(expected[1])
    assert any(
        "json-string" in path.name and ("spared" in path.name) == (escapes == "needed") for path in files(folder)
    )


def test_negative_control_a_wrong_walk_on_disk_is_seen(folder: Path) -> None:
    # What has the right checksum is believed: then the comparison above must fail.
    vocabulary = VOCABULARIES["adversarial"]
    index, automaton = indices(vocabulary)[0], Automaton()
    made = contents(index.walk(automaton, automaton.state(STRING)), automaton)
    (path,) = (path for path in files(folder) if "json-string" in path.name and path.name.endswith("-tokens.arrays"))
    assert index._store is not None
    name = path.name.removesuffix(".arrays")
    arrays = index._store.load(name)
    assert arrays is not None
    arrays["inside"][0] ^= 1
    index._store.save(name, arrays)
    again = indices(vocabulary)[0]
    assert contents(again.walk(automaton, automaton.state(STRING)), automaton) != made
    path.write_bytes(path.read_bytes()[:-1])  # and what has a wrong one is not
    again = indices(vocabulary)[0]
    assert contents(again.walk(automaton, automaton.state(STRING)), automaton) == made


def test_masks_are_the_same_with_cold_and_warm_caches_and_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = VOCABULARIES["adversarial"]
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}, "additionalProperties": True}
    constraint = JsonSchema(schema, order="any", whitespace="any", escapes="any")
    written = '{"a": "x\\u00e9 é", "b\\n": ["", "}"]}'.encode()

    def rows() -> list[list[int]]:
        for function in (token_index._tries, all_tokens):
            function.cache_clear()
        begin_epoch()
        matcher = CompiledGrammar(constraint, vocabulary).matcher()
        out, found = allocate_bitmask(1, len(vocabulary)), []
        for byte in written:
            matcher.fill_bitmask(out)
            found.append(ids_from_bitmask(out[0]).tolist())
            assert matcher.accept(vocabulary.token_bytes.index(bytes((byte,))))
        return found

    cold, warm = rows(), rows()
    assert any("json-string-not-empty" in path.name for path in files(folder))
    monkeypatch.setenv(store.VARIABLE, "off")
    assert cold == warm == rows()
    for length in range(0, len(written), 5):
        assert warm[length] == masks.allowed(constraint.root(), written[:length], vocabulary)


def test_small_vocabularies_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "MIN_TOKENS_KEPT", 8192)
    indices(VOCABULARIES["adversarial"])
    assert files(folder) == []


def test_languages_are_known_by_their_words_whatever_the_label() -> None:
    name = named(STRING)
    assert name is not None and name[0].startswith("json-string-") and name[1] is None
    assert named(ir.concat(STRING, ir.accept(("key", 3)))) == (name[0], ("key", 3))
    state = ir.concat(text.quoted(text.BODY), ir.accept(1)).derivative(ord('"'))
    assert named(state) == (name[0], 1)
    assert named(ir.concat(text.length(0, 5), text.QUOTE)) is None
    assert named(text.BODY) is None and named(ir.accept(1)) is None and named(ir.EMPTY) is None
    spared = named(spelled(STRING, "needed"))
    assert spared is not None and spared[0].startswith("json-string-spared-") and spared[1] is None
    assert named(spelled(ir.concat(STRING, ir.accept("key")), "needed")) == (spared[0], "key")
    state = spelled(ir.concat(text.quoted(text.BODY), ir.accept(1)), "needed").derivative(ord('"'))
    assert named(state) == (spared[0], 1) and named(state.derivative(ord("a"))) == (spared[0], 1)
    assert named(state.derivative(ord("\\"))) is None  # inside an escape
    assert named(spelled(ir.concat(text.length(0, 5), text.QUOTE), "needed")) is None
    with pytest.raises(TypeError):
        register("no schema decides about this", ir.complement(text.BODY))


def test_the_digest_of_a_language_is_its_structure() -> None:
    from decodekit.constraints.language.registry import _digest

    def digest(node: Node) -> bytes:
        return _digest(node, {})

    a, b = ir.literal(b"ab"), ir.literal(b"cde")
    assert digest(ir.choice(a, b)) == digest(ir.choice(b, a)) != digest(ir.choice(a, a))
    assert len({digest(node) for node in (a, b, ir.repeat(a), ir.repeat(a, 1), ir.repeat(a, 0, 3), STRING)}) == 6
    spared = spelled(STRING, "needed")
    assert len({digest(node) for node in (STRING, spared, spared.derivative(ord("\\")), spelled(b, "needed"))}) == 4
