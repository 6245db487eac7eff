"""Who else knows the languages of the library: each raises for a text that is none of its language.

A judge may accept more than the grammar, which says in its head what it leaves out. The exact ones accept just as much.
"""

from __future__ import annotations

import ast
import csv
import datetime
import email.headerregistry
import io
import ipaddress
import json
import re
import sqlite3
import subprocess
import tomllib
import uuid
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urlsplit

import jsonschema
import yaml
from markdown_it import MarkdownIt

from decodekit.constraints.grammar.library import path_of

TABLES = """
    CREATE TABLE users (id INTEGER, name TEXT, age INTEGER, email TEXT, city TEXT);
    CREATE TABLE orders (id INTEGER, user_id INTEGER, amount REAL, status TEXT);
    CREATE TABLE products (id INTEGER, name TEXT, price REAL);
"""


def run_sql(text: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    connection.execute(text).fetchall()
    connection.close()


def parse_sql(text: str) -> None:
    """The syntax alone: names of tables and functions, and numbers of columns, may be wrong."""
    try:
        run_sql(text)
    except sqlite3.Error as error:
        if re.search("syntax error|unrecognized token|incomplete input", str(error)):
            raise


def parse_json(text: str) -> object:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def parse_lines(text: str) -> None:
    for line in text.removesuffix("\n").split("\n"):
        parse_json(line)


def validate(name: str) -> Callable[[str], None]:
    validator = jsonschema.Draft202012Validator(json.loads(path_of(name).read_text()))
    return lambda text: validator.validate(parse_json(text))


def parse_csv(text: str) -> None:
    list(csv.reader(io.StringIO(text, newline=""), strict=True))


def parse_expression(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of a call of a number
        ast.parse(text, mode="eval")


def parse_arithmetic(text: str) -> None:
    """As Python reads it, where a name may be a keyword."""
    parse_expression(re.sub(r"\b([a-z])", r"name_\1", text.replace("^", "**")))


def parse_toml(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Keys that repeat, see the head of the grammar.
        if not re.search("twice|overwrite|immutable|mutate|Duplicate", str(error)):
            raise


def parse_function(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        ast.parse(text)  # "return" is inside of functions by the grammar


def compile_regular_expression(text: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what a later version may read in a class
            re.compile(text)
    except re.error as error:
        if "min repeat greater than max repeat" not in str(error):  # the head of the grammar says so
            raise


def read_float(text: str) -> None:
    if re.search(r"[\s_A-DF-Z]", text):
        raise ValueError(f"{text!r} is left out: white space, underscores and words in other cases")
    float(text)


def parse_date(text: str) -> None:
    if datetime.date.fromisoformat(text).isoformat() != text:
        raise ValueError(f"{text!r} is in another format of ISO 8601")


def parse_url(text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is no address of the web")
    assert parts.port is None or 0 <= parts.port < 65_536


def count_squares(text: str) -> None:
    ranks = text.split(" ")[0].split("/")
    if [sum(int(c) if c.isdigit() else 1 for c in rank) for rank in ranks] != [8] * 8 or re.search(
        "[0-9]{2}", ranks[0]
    ):
        raise ValueError(f"{text!r} has no eight ranks of eight squares")


def render_table(text: str) -> None:
    kinds = [token.type for token in MarkdownIt("commonmark").enable("table").parse(text)]
    if kinds[0] != "table_open" or kinds.count("table_open") != 1 or kinds[-1] != "table_close":
        raise ValueError(f"{text!r} is no table")


def render_list(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(text)
    if tokens[0].type != "bullet_list_open" or tokens[-1].type != "bullet_list_close":
        raise ValueError(f"{text!r} is no list")


def number_of(numeral: str) -> int:
    """The value of a Roman numeral that is written as it should be."""
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    digits = [values[letter] for letter in numeral]
    value = sum(-d if d < max(digits[i:]) else d for i, d in enumerate(digits))
    if not 0 < value < 4000 or numeral != roman(value):
        raise ValueError(f"{numeral!r} is no numeral")
    return value


def roman(value: int) -> str:
    steps = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL")]
    steps += [(10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    letters = ""
    for step, letter in steps:
        letters += letter * (value // step)
        value %= step
    return letters


def parse_xml(text: str) -> None:
    ElementTree.fromstring(text)


def parse_command(text: str) -> None:
    subprocess.run(["sh", "-n", "-c", text], check=True, capture_output=True)


JUDGES: dict[str, Callable[[str], object]] = {
    "arithmetic": parse_arithmetic,
    "bullet_list": render_list,
    "csv": parse_csv,
    "date": parse_date,
    "datetime": datetime.datetime.fromisoformat,
    "email": lambda text: email.headerregistry.Address(addr_spec=text),
    "fen": count_squares,
    "float": read_float,
    "geojson_geometry": validate("geojson_geometry"),
    "html": lambda text: parse_xml(f"<html>{text}</html>"),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "json": parse_json,
    "json_rpc_request": validate("json_rpc_request"),
    "jsonl": parse_lines,
    "markdown_table": render_table,
    "python_expression": parse_expression,
    "python_function": parse_function,
    "regular_expression": compile_regular_expression,
    "roman": number_of,
    "shell": parse_command,
    "sql": parse_sql,
    "svg": parse_xml,
    "toml": parse_toml,
    "url": parse_url,
    "uuid": uuid.UUID,
    "yaml": yaml.safe_load,
}

EXACT = ("date", "float", "geojson_geometry", "ipv4", "ipv6", "json", "json_rpc_request", "roman")
"""Judges that also reject what the examples of their grammar reject."""
