"""Patterns to compare with `re`: for every construct by hand, and random ones; and the comparison itself."""

from __future__ import annotations

import itertools
import random
import re
import sys
import unicodedata
import warnings
from functools import lru_cache

from decodekit.constraints.language.ir import EMPTY
from decodekit.constraints.language.node import Node

FLAGS = {"a": re.A, "i": re.I, "m": re.M, "s": re.S, "x": re.X, "u": re.U}


def compiled(pattern: str, flags: str = "") -> re.Pattern[str]:
    """The pattern as `re` understands it. Raises what `re.compile` raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that may mean something else one day
        return re.compile(pattern, sum(FLAGS[flag] for flag in set(flags)))


_TOKENS = re.compile(
    r"\\[pP](?P<name>\w|\{[\w -]+\})|\\[ux]\{(?P<digits>[0-9a-fA-F]+)\}|\\(?P<escaped>.)|(?P<set>\[\^?\]?)"
    r"|(?P<open>\(\?<(?![=!]))|(?P<flags>\(\?[aimsux-]+\))|(?P<group>\()|(?P<bar>\|)|(?P<close>\))|(?P<end>\])|(?P<other>.)",
    re.DOTALL,
)


def as_re(pattern: str) -> str:
    r"""A pattern with what `re` refuses, written out: ``a(?i)b|c`` is ``(?i:a(?i:b)|(?i:c))``; ``\p{L}`` is a class.

    Not understood are comments, and ``\P`` in a class.
    """
    parts: list[str] = []
    flags: list[list[str]] = [[]]  # that hold from somewhere on, for each group that is open
    in_set = False
    for token in _TOKENS.finditer(pattern):
        kind, text = token.lastgroup, token[0]
        if kind == "name":
            ranges = by_category(re.sub("[{} _-]", "", token["name"]).lower(), is_negated=in_set and text[1] == "P")
            members = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
            text = members if in_set else f"[{'^' * (text[1] == 'P')}{members}]"
        elif kind == "digits":
            text = f"\\U{int(token['digits'], 16):08x}"
        elif kind == "escaped":
            text = {"\\z": "\\Z"}.get(text, text)
        elif in_set:
            in_set = text[-1] != "]"
        elif kind == "set":
            in_set = True
        elif kind in ("open", "group"):
            text = "(?P<" if kind == "open" else text
            flags.append([])
        elif kind == "flags":
            text = text[:-1] + ":"
            flags[-1].append(text)
        elif kind == "bar":
            text = ")" * len(flags[-1]) + text + "".join(flags[-1])
        elif kind == "close":
            text = ")" * len(flags.pop()) + text if len(flags) > 1 else text
        parts.append(text)
    return "".join(parts) + ")" * len(flags[0])


@lru_cache(maxsize=64)
def by_category(name: str, is_negated: bool) -> tuple[tuple[int, int], ...]:
    """The ranges of code points whose general category begins so, in small letters, or of all others."""
    found: list[tuple[int, int]] = []
    for point in range(sys.maxunicode + 1):
        if unicodedata.category(chr(point)).lower().startswith(name) != is_negated:
            found.append((found.pop()[0] if found and found[-1][1] == point - 1 else point, point))
    return tuple(found)


@lru_cache(maxsize=64)
def texts(alphabet: str, length: int) -> list[str]:
    """All texts up to a length."""
    return ["".join(text) for n in range(length + 1) for text in itertools.product(alphabet, repeat=n)]


def accepted(node: Node, alphabet: str, length: int) -> set[str]:
    """The words of a language among these texts."""
    found = set()
    agenda = [("", node)]
    while agenda:
        text, rest = agenda.pop()
        if rest.is_nullable:
            found.add(text)
        if len(text) == length:
            continue
        for char in dict.fromkeys(alphabet):
            after = rest
            for byte in char.encode():
                after = after.derivative(byte)
            if after is not EMPTY:
                agenda.append((text + char, after))
    return found


def differences(node: Node, oracle: re.Pattern[str], alphabet: str, length: int) -> set[str]:
    """The texts about which a language and `re.fullmatch` disagree."""
    return accepted(node, alphabet, length) ^ {text for text in texts(alphabet, length) if oracle.fullmatch(text)}


ASCII = "ab1_ \n"
UNICODE = "aé٣_ \n"  # a letter, one with an accent, a digit, all of them word characters beyond ASCII too
CASES = "kK\u212as\u017fß"
ASTRAL = "a\U00010400\U00010428\u0301"  # capital and small Deseret letters, a combining accent

# Patterns by what they are about; each is compared on all short texts over the alphabet.
BY_HAND: list[tuple[str, str, list[str]]] = [
    (ASCII, "", [
        "", "a", "ab", "a|b", "a||b", "|", "(?:)", "()", "(a)(b)", "(?P<x>a)b", "(?P<été>a)|b", "a(?#comment)b",
        "a(?#)*", "(?#a\\)b)a", "a{2}(?#x)", "[ab]", "[^ab]", "[]a]", "[^]a]", "[]-a]", "[a-]", "[-a]", "[a\\-b]",
        "[a-b-1]", "[+--]", "[[]", "[[a]]", "[a&&b]", "[a||b]", "[a~~b]", "[^\\n]", r"[\]]", r"[\\a]", r"[\w]",
        r"[^\w]", r"[\W\d]", r"[\d\s-]", r"[\s\S]", r"[^\s\S]", "[^^]", "[\\x61-\\x62]", "[\\141b]", "[\\0-\\177]",
        r"[\a\b\f\n\r\t\v]", ".", ".*", "a.b", "..", r"\.|a", r"\x61", r"\u0061", r"\U00000061", r"\141", r"\0",
        r"\01|a", r"\N{LATIN SMALL LETTER A}", r"[\N{DIGIT ONE}b]", r"\n", r"\ ", r"\_", r"\-", r"\#", "\\\n", "\\é",
        r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\w+\s\w*", r"\d*\D", "a*", "a+", "a?", "a*b", "(ab)*", "(a|b)*1",
        "a{2}", "a{1,2}", "a{,2}", "a{1,}", "a{,}", "a{0}b", "a{0,0}", "(a{1,2}){2}", "(?:a?){3}a{2}", "a{02}", "a{1",
        "a{", "a{}", "a{x}", "a{1,b}", "{a", "a{,b}", "a{-1}", "x{1}{", "}a", "]a", "a{ 1}", "a*?", "a+?b", "a??b",
        "a{1,2}?b", "a{2}?", "(?:a|b)*?1", "(a*?)*?b", "((a|b)*)*", "(a*)*", "(a*)+", "(a+)*b", "(a|a)*", "(a?b?)*",
        "(|a)*", "(|a)+b", "(a|)*b", "(?:a*b*)*1",
    ]),
    (ASCII, "", [
        "^a", "a$", "^", "$", "^$", "^a|b$", r"\Aa\Z", r"\Aa|b\Z", "a\n$", "a$\n", "a$\n?", "$\n", "(a$)\n?", "a^b",
        "a$b", "(^a|b)1", "(?:^a)?b", "(?:^)*a", "(?:$)*\n?", "(?:a$)*", "(?:a$\n?)*", "(?:^a|b)*", r"\Z\n?",
        r"a\Z\n?", r"\ba", r"a\b", r"\b", r"\B", r"(?:\B)*a?", r"a\b b", r"a\bb", r"a\Bb", r"\Ba", r"a\B", r"\B_\B",
        r"\b\w+\b", r"\b.\B.", r"(\ba|b)+", r"(?:a\b|b)+ ?", r"(\ba |b)*", r"(?:\w+\b\W*)*", r"(?:a*\b)*",
        r"(?:\B|a)*", r"(?:\b|a)+ ", r"\b\b", r"\b\B", "(?=a)", "(?=a)a", "(?=a)*b", "(?=a)+.", "(?=a){2}.", "(?!a).",
        "(?!a)*.", "(?!)", "(?=)", "(?!a|b).*", "(?=.*a)(?=.*b).*", "(?=(?!b)[^1])..", "(?!.*ab).*", "(?:(?!ab).)*",
        "(?:(?=a)a?){2}b", "(?:a?(?!b)){2,3}1", "(?=a$)a\n?", "(?=a\\Z)a", "(?=\\b)a", "a(?=b|$)b?", "(?!^)a|b",
        "(?!$).", "((?=a)|b)+a", "(?=(?=a)a(?=b))ab", "a(?<=a)b", "(?<=a)b", "(?<!a)b", "a(?<!b)b", "(?<=^)a",
        "(?<!^)a", "(?<=a|b)1", "[ab](?<=a)1", "(?<=a)*b", "(?<!a)?b", "(?<=^a)b", "ab(?<=ab)1", "(?<!b)a+(?<!aa)1",
        r"\w+(?<!_) ?", r"(?<=\b)a", r"a(?<=\w)b", "(?<=)a", "(?<!)a", "(?<=(?:a|b))1?", r"(?:a|b)(?<=b)1",
    ]),
    (ASCII, "a", [
        r"\w*", r"\W", r"\b.\b", r"\d", r"\s",
    ]),
    (UNICODE, "", [
        r"\w+", r"\W", r"\d+", r"\D", r"\s", r"\S*", r"\b\w+\b", r"\B.\B", r"é\b", r"\bé", r"[\w]", r"[^\w]",
        r"[^\W\d]", r"é\B٣",
    ]),
    (UNICODE, "a", [
        r"\w+", r"\W", r"\d+", r"\D", r"\s", r"\S*", r"\b\w+\b", r"\B.\B", r"é\b", r"\bé", r"[\w]", r"[^\w]", r"é\Ba",
        r".\bé",
    ]),
    (UNICODE, "", [
        r"(?a)\w+", r"(?a:\w)\w", r"(?u:\w)", r"(?a:\w|(?u:\w)a)", r"(?a:\b.)", r"\b(?a:\B)é", r"(?a:\b)é",
        r"\w(?a:\b)\w", r"(?u)\d",
    ]),
    ("\x1c\x85\xa0\u200b\ufeff ", "", [
        r"\s", r"\S", r"\w",
    ]),
    ("\x1c\x85\xa0\u200b\ufeff ", "a", [
        r"\s", r"\S",
    ]),
    ("a\n", "m", [
        "^a", "a$", "^", "$", "a$\n^a", "(?:^a$\n?)*", "^$", r"\Aa\Z", r"a\Z\n?", "(?:a$)*", "$\n^", "(^|a)*",
        "(?:a*^)*", "$^", "^\n$", "(?=a$)a\n", "(?<=^)a", "(?-m:^)a", "(?-m:a$\n)", "\n^a", "\n$", "(?:$\n)*",
        "a(?!$).*", "(?:^|a$)+a",
    ]),
    ("a\n", "", [
        "(?m)^a$", "(?m:^a$)\n*", "(?m:^)a|\n(?m:^)a", "(?:\n^a)", "\n(?m:^a)", "(?m:a$)\na", "a$\na",
    ]),
    ("a\n\r", "s", [
        ".", ".*", "a.", "[^a].", "(?-s:.)", "(?-s:.).",
    ]),
    ("a\n\r", "", [
        ".", "(?s).", "(?s:.).", "(?s:.(?-s:.))", "(?s-m:.)$",
    ]),
    ("aA#\n ", "x", [
        "a b", "a # c\nA", r"a\ A", r"\#", "[ #]", "[a #]+", "a  +", "a #c\n*", "( a | A )", " (?i) a", "(?# c )a",
        "a{1, 2}", "a{2 }", "(?-x: a)", "(?-x:a #)", " a ", "#", "a#", "a#\\\nA\nA", "(?:a #)\n)+", "[^ ]", "a\\\n",
        " | a", "\ta\x0b\x0cA",
    ]),
    ("aA# ", "", [
        "(?x) a b?", "(?x: a # c\n) a", "(?x)(?-x: )a", " (?x: a)", "(?x)a#A|b", "(?x)[#]", "(?ix) A", "(?x-i: a)",
    ]),
    ("aAbB", "i", [
        "a", "A", "ab", "[a]", "[^a]", "[A-B]", "[^A-B]", "a|B", "(?-i:a)", "(?-i:A)b", "(?=A)a", "a(?<=A)b",
        "[a-b]{2}", "(?i)a", "(?-i:[a])", "(?!A).", "a*B?",
    ]),
    ("aAbB", "", [
        "(?i)ab", "(?i:a)b", "(?i:a(?-i:b))", "a(?i:b|A)B", "(?i)(?-i:a)b", "(?i:[^a])", "(?is:A.)",
    ]),
    (CASES, "i", [
        "k", "K", "\u212a", "[k]", "[^k]", "[\u212a]", "[^\u212a]", "[a-z]", "[^a-z]", "s", "S", "\u017f", "[\u017f]",
        "ß", "ẞ", "[k-s]", r"\w", r"[\W]", r"\W", r"[^\w]", "\u017f+\u212a", "(?a:k)", "(?a:s)+", "(?-i:k)s",
        "[\u2120-\u2130]",
    ]),
    (CASES, "ia", [
        "k", "K", "\u212a", "[k]", "[^k]", "[\u212a]", "[a-z]", "[^a-z]", "s", "\u017f", "ß", "ẞ", "[K-S]", r"\w",
        "(?u:k)", "(?u:[a-z])", "(?u:\u017f)s",
    ]),
    ("iI\u0131\u0130", "i", [
        "i", "I", "\u0131", "\u0130", "[i]", "[^\u0131]", "[h-j]", "i\u0307?",
    ]),
    ("\u00b5\u03bc\u039c\u03a3\u03c3\u03c2", "i", [
        "\u00b5", "\u03bc", "\u039c", "\u03a3", "\u03c3+", "\u03c2", "[\u03a3]", "[^\u03c2]", "[α-ω]", "[^\u00b5]",
    ]),
    ("\u0390\u1fd3\u0345\u03b9\u0399\u1fbe", "i", [
        "\u0390", "\u1fd3", "\u0345", "\u03b9", "\u1fbe", "[\u0399]", r"[\W]", r"[\w]", r"\W", "[^\u03b9]",
    ]),
    ("\u017ft\ufb05\ufb06", "i", [
        "\ufb05", "\ufb06", "st", "\u017ft",
    ]),
    ("\u01c5\u01c6\u01c4", "i", [
        "\u01c5", "\u01c6", "\u01c4", "[\u01c5]",
    ]),
    (ASTRAL, "", [
        ".", r"\w", r"\W", "a\u0301", "[a\U00010400]", "[^\U00010400]", "[\U00010400-\U00010428]", r"\U00010400",
        r"\N{DESERET SMALL LETTER LONG I}", "[\uffff-\U00010401]",
    ]),
    (ASTRAL, "i", [
        "\U00010400", "\U00010428", "[\U00010428a]", "[\U00010400-\U00010401]", "[^\U00010400-\U00010401]",
        "[\ufff0-\U00010401]", "\u0301", "[^\U00010428]",
    ]),
    ("ab1", "", [
        "a*+", "a*+a", "a++b", "a?+a", "a?+b", "a{1,2}+a", "a{,2}+b", "a{2}+", "(?>a)", "(?>a|ab)b", "(?>ab|a)b",
        "(?>a*)a", "(?>a*)b", "(?>a*?)a", "(?>a*?)b", "(?>a|b)*+1", "(?>a+?)b", "(?>(?:a|ab)(?:b|))b?",
        "(?>(?:a|ab)*)b*", "(?:a|ab)*+b*", "(?:ab|a)*+b", "(?:a|ab){2}+b?", "(?:ab?)*+b", "(?:ab?)++b",
        "(?>(?:ab?)*)b", "(?>(?:a|b)*?1)", "(?>a(?>b*)1|ab)", "(?>a|)a", "(?>|a)a", "(?>(?:|a)*)a", "(?:|a)*+a",
        "(?:a|)*+b", "(?>(?:a|)*)a", "(?>(?:a?b?)*)1", "(?:a?b?)*+b", "(?>(?:a??)*b)", "(?>a(?=b)|ab)b?",
        "(?=(?>a*)b).*", "(?!(?>a|ab)1).*", "(?>(?=a))a", "(?>^a|b)", "(?>a*)+b", "(?:(?>a*)b)*", "(?:a*+b)*",
        "(?:(?>a|ab)1?)*", "((?>a|ab)b)*", "(?>(?>a|ab)|ab)b", "(?>(?:a{1,2}){2})a?", "(?>a{1,2}?)a", "(?>a{1,2})a",
        "(?:a?+)?a", "(?>(?:a|b|ab)+?)1", "(?>(?:(?:|a)b?)*)a*", "(?>(?:|a){2})a", "(?>a*b?)*", "(?>[ab]*)1",
        "(?>[ab]*1)[ab]*", "[ab]*+[b1]", "(?>.*)", "(?>.*)1", "(?>(?:(?:|a)|b)*)b?", "(?>(?:b|(?:a|)*)*)1",
        r"(?>a\b|ab)b?", r"(?:a|\b)*+b", r"(?>(?:\b|a)*)a?", r"(?>(?:a|\b)*?b)", r"(?:a\b|a)++b", "(?>a$|ab)b?",
        "(?>a+|b)(?:a|b)?", "(?>a|ab)(?>b|1)", "(?:a(?>b|b1)){2}", "(?>(?P<x>a)|ab)b", "(?i:(?>A|ab))B?",
    ]),
]  # fmt: skip


def random_pattern(rng: random.Random, depth: int, atoms: list[str], is_atomic: bool = False) -> str:
    """A pattern from the syntax tree down, over these atoms."""
    kind = rng.randrange(14) if depth else 0
    if kind < 4:
        return rng.choice(atoms)
    inner = [random_pattern(rng, depth - 1, atoms, is_atomic) for _ in range(2)]
    if kind < 7:
        return inner[0] + inner[1]
    if kind == 7:
        return f"(?:{inner[0]}|{inner[1]})"
    if kind < 10:
        signs = ["*", "+", "?", "{2}", "{1,2}", "{0,3}?", "*?", "+?", "??", "{,2}"]
        return f"(?:{inner[0]}){rng.choice([*signs, '*+', '++', '?+', '{1,2}+'] if is_atomic else signs)}"
    if kind == 10 and is_atomic:
        return f"(?>{inner[0]}|{inner[1]})"
    if kind < 12:
        return f"(?={inner[0]}){inner[1]}" if rng.random() < 0.5 else f"(?!{inner[0]}){inner[1]}"
    if kind == 12:
        return f"(?{rng.choice(['i', 'a', 's', 'm', '-i', '-s', 'im', 'a-m'])}:{inner[0]}){inner[1]}"
    first, behind = inner[0], rng.choice(atoms)
    places = [f"^{first}", f"{first}$", rf"\b{first}", rf"\B{first}", rf"{first}\b", f"{first}(?<={behind})"]
    return rng.choice(places)
