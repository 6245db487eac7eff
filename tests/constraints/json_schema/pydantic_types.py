"""Every kind of type that Pydantic has a schema for, each with texts of every day, which have to be written ones.

Sources: the conversion table of Pydantic's documentation, `pydantic.types`, `pydantic.networks`, the markers of
`annotated_types`.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import os
import pathlib
import re
import typing
import uuid
import zoneinfo
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import annotated_types as at
import pydantic
import typing_extensions
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, networks
from pydantic.alias_generators import to_camel
from pydantic.color import Color


class Colour(enum.Enum):
    RED = "red"
    BLUE = 3
    NEVER = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.IntFlag):
    READ = 1
    WRITE = 2


class Plain(enum.Flag):
    A = 1
    B = 2


class Kind(enum.StrEnum):
    A = "a"


class Ratio(float, enum.Enum):
    HALF = 0.5
    WHOLE = 1.0


class Point(NamedTuple):
    x: int
    y: int = 0


class Open(typing_extensions.TypedDict, total=False):
    x: typing_extensions.Required[int]
    y: str


@dataclasses.dataclass
class Pair:
    first: int
    made: int = dataclasses.field(init=False, default=3)
    start: dataclasses.InitVar[int] = 0


@dataclasses.dataclass(frozen=True)
class Key:
    n: int


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog", "wolf"] = "dog"
    name: str = ""


class Named(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
    total: int = Field(alias="Total")


class Aliased(BaseModel):
    total: int = Field(validation_alias=pydantic.AliasChoices(pydantic.AliasPath("a", 0), "sum"))


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, str_min_length=1)
    name: str


class Hexed(BaseModel):
    model_config = ConfigDict(val_json_bytes="hex")
    data: bytes


class Encoded(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    data: Annotated[bytes, Field(max_length=4)]


class EncodedFreely(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    data: bytes


class Strictly(BaseModel):
    model_config = ConfigDict(strict=True)
    day: dt.date
    key: uuid.UUID
    level: Level
    ratio: float
    items: set[int]
    pair: tuple[int, str]
    cost: decimal.Decimal
    marks: dict[int, bool]


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Renamed(BaseModel):
    kind: Literal["a"] = Field("a", alias="Kind")


class Other(BaseModel):
    kind: Literal["b"] = Field("b", alias="Kind")
    n: int = 0


class Frozen(BaseModel, frozen=True):
    a: int


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")
    first_name: str


class Extra(BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, int]
    x: int


DAY: Final = '"2026-03-04"'
MOMENT: Final = '"2026-03-04T12:30:00Z"'
LOCAL: Final = '"2026-03-04T12:30:00"'
UUID_4: Final = '"f47ac10b-58cc-4372-a567-0e02b2c3d479"'
UTC: Final = dt.UTC

VALUES: Final[dict[str, tuple[Any, list[str]]]] = {
    # what JSON has
    "none": (None, ["null"]),
    "bool": (bool, ["true", "false"]),
    "int": (int, ["0", "-1", "42", "9007199254740993"]),
    "float": (float, ["0", "-1.5", "3.14", "1e9"]),
    "str": (str, ['""', '"Zürich"', '"a\\nb"']),
    "any": (Any, ["null", '{"a":[1]}']),
    "json value": (pydantic.JsonValue, ['{"a":[1,null]}']),
    "strict int": (pydantic.StrictInt, ["3"]),
    "strict float": (pydantic.StrictFloat, ["3", "3.5"]),
    "strict bool": (pydantic.StrictBool, ["true"]),
    "strict str": (pydantic.StrictStr, ['"a"']),
    # numbers
    "positive int": (pydantic.PositiveInt, ["1", "99"]),
    "negative int": (pydantic.NegativeInt, ["-1"]),
    "non-negative int": (pydantic.NonNegativeInt, ["0", "7"]),
    "non-positive int": (pydantic.NonPositiveInt, ["0", "-7"]),
    "conint": (pydantic.conint(gt=2, lt=50, multiple_of=4), ["4", "48"]),
    "positive float": (pydantic.PositiveFloat, ["0.5", "1e-9"]),
    "negative float": (pydantic.NegativeFloat, ["-0.5"]),
    "non-negative float": (pydantic.NonNegativeFloat, ["0", "0.5"]),
    "non-positive float": (pydantic.NonPositiveFloat, ["0", "-0.5"]),
    "finite float": (pydantic.FiniteFloat, ["1.5"]),
    "confloat": (pydantic.confloat(gt=0.5, lt=2.5), ["0.51", "1", "2.49"]),
    "confloat, steps": (pydantic.confloat(multiple_of=0.1), ["0.3", "12.7"]),
    "confloat, at the bounds": (pydantic.confloat(ge=0.1, le=0.3), ["0.1", "0.3"]),
    "decimal": (decimal.Decimal, ["1.25", "-3", "1e9"]),
    "condecimal": (pydantic.condecimal(max_digits=6, decimal_places=2, gt=decimal.Decimal(0)), ["0.01", "9999.99"]),
    "condecimal, digits": (pydantic.condecimal(max_digits=3), ["0.125", "12.5", "999"]),
    "condecimal, places": (pydantic.condecimal(decimal_places=2), ["0.12", "12345.5"]),
    "condecimal, below one": (pydantic.condecimal(max_digits=2, decimal_places=2), ["0.05", "-0.5"]),
    "condecimal, more places than digits": (pydantic.condecimal(max_digits=1, decimal_places=3), ["0.5"]),
    "condecimal, steps": (pydantic.condecimal(multiple_of=decimal.Decimal("0.25")), ["0.75"]),
    "confloat, bounds that are no decimals": (pydantic.confloat(gt=0.1 + 0.2, le=0.1 + 0.7), ["0.31", "0.79"]),
    "condecimal, bounds": (pydantic.condecimal(ge=decimal.Decimal("0.1"), lt=decimal.Decimal("0.3")), ["0.1", "0.29"]),
    "fraction": (fractions.Fraction, ['"1/3"', "0.5", "2"]),
    "fraction, bounds": (Annotated[fractions.Fraction, Field(ge=fractions.Fraction(1, 4))], ["0.25", "3"]),
    "fraction, a third": (Annotated[fractions.Fraction, Field(gt=fractions.Fraction(1, 3))], ["0.5"]),
    "complex": (complex, ['"1+2j"', '"-0.5"']),
    "byte size": (pydantic.ByteSize, ["1024", '"10MB"', '"1.5 GiB"']),
    # strings
    "constr": (pydantic.constr(min_length=2, max_length=4), ['"ab"', '"Äöü"']),
    "constr, stripped": (pydantic.constr(strip_whitespace=True, min_length=1), ['"a"', '"New York"']),
    "constr, stripped pattern": (pydantic.constr(strip_whitespace=True, pattern="^.{2}$"), ['"ab"']),
    "constr, lower": (pydantic.constr(to_lower=True, pattern="^[A-Z]+$"), ['"AB"']),
    "constr, ascii": (Annotated[str, StringConstraints(ascii_only=True)], ['"ab"']),
    "pattern": (Annotated[str, Field(pattern=r"^[A-Z]{2}-\d+$")], ['"AB-12"']),
    "pattern without case": (Annotated[str, Field(pattern=r"(?i)^[a-z]+-\d+$")], ['"Ab-12"']),
    "compiled pattern": (Annotated[str, Field(pattern=re.compile("^[a-k]+$", re.IGNORECASE))], ['"aB"']),
    "pattern of words": (Annotated[str, Field(pattern=r"^\w+\s\w+$")], ['"a b"']),
    "pattern of others": (Annotated[str, Field(pattern=r"^[^\W\d]\W\D\S$")], ['"a-b."']),
    "pattern of no blanks": (Annotated[str, Field(pattern=r"^\S{2,9}$")], ['"Zürich"']),
    "pattern of no digits": (Annotated[str, Field(pattern=r"^\D{2,9}$")], ['"José"']),
    "pattern of boundaries": (Annotated[str, Field(pattern=r"\bab\b")], ['"ab"', '"x ab, y"']),
    "pattern of anchors": (Annotated[str, Field(pattern=r"\A(?P<n>a|b)\z")], ['"a"']),
    "pattern of re": (typing.cast("Any", pydantic.create_model(
        "M", __config__=ConfigDict(regex_engine="python-re"), a=(Annotated[str, Field(pattern=r"^(?!x)\w+\Z")], ...)
    )), ['{"a":"ab"}']),
    "pattern of lines": (Annotated[str, Field(pattern="(?m)^b$")], ['"a\\nb"']),
    "pattern of others without case": (Annotated[str, Field(pattern="(?i)^[^k]s$")], ['"as"', '"ÄS"']),
    "pattern of any": (Annotated[str, Field(pattern="(?s)^.$")], ['"a"', '"\\n"']),
    "bytes": (bytes, ['"abc"', '"é"']),
    "conbytes": (pydantic.conbytes(min_length=1, max_length=3), ['"abc"']),
    "hex bytes": (Hexed, ['{"data":"00ff"}']),
    "base64 bytes of a class": (Encoded, ['{"data":"AAE="}']),
    "base64 bytes of any length": (EncodedFreely, ['{"data":"AAE="}', '{"data":"_w=="}']),
    "base64 bytes": (pydantic.Base64Bytes, ['"aGVsbG8="', '"/+8="']),
    "base64 str": (pydantic.Base64Str, ['"aGVsbG8="']),
    "base64url bytes": (pydantic.Base64UrlBytes, ['"_-8="']),
    "base64url str": (pydantic.Base64UrlStr, ['"aGVsbG8="']),
    "secret str": (pydantic.SecretStr, ['"a"']),
    "secret bytes": (pydantic.SecretBytes, ['"a"']),
    "secret, bounds": (Annotated[pydantic.SecretStr, Field(min_length=2)], ['"ab"']),
    "secret date": (pydantic.Secret[dt.date], [DAY]),
    "regex": (re.Pattern, ['"a+"', r'"^\\d{2}$"']),
    "regex of str": (re.Pattern[str], ['"[ab]"']),
    "card": (pydantic.types.PaymentCardNumber, ['"4242424242424242"']),
    "color": (Color, ['"red"', '"#ff8000"', '"#abc"']),
    "json": (pydantic.Json, [r'"{\"a\":[1,\"b\"]}"']),
    "json of numbers": (pydantic.Json[list[int]], [r'"[1,2]"', '"[]"']),
    "json of strings": (pydantic.Json[str], [r'"\"a\\\\b\""']),
    "json of objects": (pydantic.Json[dict[str, Cat]], [r'"{\"a\":{\"lives\":3}}"']),
    "json of trees": (pydantic.Json[Tree], [r'"{\"value\":1,\"children\":[{\"value\":2}]}"']),
    "json of json": (pydantic.Json[pydantic.Json[list[int]]], [r'"\"[1]\""']),
    "json of bounds": (pydantic.Json[Annotated[int, Field(gt=3)]], ['"4"']),
    "json of moments": (pydantic.Json[list[pydantic.AwareDatetime]], [r'"[\"2026-03-04T12:30:00Z\"]"']),
    "json of two keys": (pydantic.Json[Annotated[dict[str, int], Field(min_length=2)]], [r'"{\"a\":1,\"b\":2}"']),
    "json of two items": (pydantic.Json[Annotated[set[int], Field(min_length=2)]], ['"[1,2]"']),
    # dates and times
    "date": (dt.date, [DAY, '"2024-02-29"']),
    "condate": (pydantic.condate(ge=dt.date(2019, 12, 31), lt=dt.date(2030, 2, 1)), [DAY, '"2019-12-31"']),
    "condate, early": (pydantic.condate(gt=dt.date(5, 1, 9), le=dt.date(1999, 12, 31)), ['"0005-01-10"']),
    "past date": (pydantic.PastDate, ['"1990-05-17"']),
    "future date": (pydantic.FutureDate, ['"2399-01-01"']),
    "datetime": (dt.datetime, [MOMENT, LOCAL, '"2026-03-04T12:30:00.25+02:00"']),
    "aware datetime": (pydantic.AwareDatetime, [MOMENT, '"2026-03-04T12:30:00+02:00"']),
    "naive datetime": (pydantic.NaiveDatetime, [LOCAL, '"2026-03-04T12:30:00.5"']),
    "past datetime": (pydantic.PastDatetime, ['"1990-05-17T10:00:00"']),
    "future datetime": (pydantic.FutureDatetime, ['"2399-01-01T00:00:00Z"']),
    "datetime, bounds": (Annotated[dt.datetime, Field(ge=dt.datetime(2020, 1, 1, tzinfo=UTC))], [MOMENT]),
    "datetime, timezone": (Annotated[dt.datetime, at.Timezone(...)], [MOMENT]),
    "time": (dt.time, ['"12:30:00"', '"23:59:59.5Z"']),
    "time, bounds": (Annotated[dt.time, Field(ge=dt.time(9))], ['"12:30:00"']),
    "timedelta": (dt.timedelta, ['"PT1H30M"', '"P3D"', '"P3DT4H"']),
    "timedelta, bounds": (Annotated[dt.timedelta, Field(gt=dt.timedelta(0), le=dt.timedelta(days=2))], ['"PT1H30M"']),
    "zoneinfo": (zoneinfo.ZoneInfo, ['"Europe/Zurich"', '"UTC"']),
    # names and addresses
    "uuid": (uuid.UUID, [UUID_4]),
    "uuid1": (pydantic.UUID1, ['"2eb8aa08-aa98-11ea-b4aa-73b441d16380"']),
    "uuid3": (pydantic.UUID3, ['"6fa459ea-ee8a-3ca4-894e-db77e160355e"']),
    "uuid4": (pydantic.UUID4, [UUID_4]),
    "uuid5": (pydantic.UUID5, ['"886313e1-3b8a-5372-9b90-0c9aee199e5d"']),
    "uuid6": (pydantic.UUID6, ['"1efa1b8a-aa08-6e98-b4aa-73b441d16380"']),
    "uuid7": (pydantic.UUID7, ['"018f4a3e-1b2c-7d3e-8f4a-5b6c7d8e9f0a"']),
    "uuid8": (pydantic.UUID8, ['"018f4a3e-1b2c-8d3e-8f4a-5b6c7d8e9f0a"']),
    "path": (pathlib.Path, ['"a/b.txt"', '""']),
    "pure path": (pathlib.PurePosixPath, ['"/etc"']),
    "new path": (pydantic.NewPath, ['"no-such-file"']),
    "ipv4": (ipaddress.IPv4Address, ['"192.168.0.1"']),
    "ipv4 interface": (ipaddress.IPv4Interface, ['"192.168.0.1/24"']),
    "ipv4 network": (ipaddress.IPv4Network, ['"10.0.0.0/8"', '"192.168.1.0/24"', '"192.168.1.64/26"']),
    "ipv6": (ipaddress.IPv6Address, ['"2001:db8::1"', '"::1"']),
    "ipv6 interface": (ipaddress.IPv6Interface, ['"fe80::1/64"']),
    "ipv6 network": (ipaddress.IPv6Network, ['"2001:db8::/32"', '"::1/128"']),
    "ip": (pydantic.IPvAnyAddress, ['"10.0.0.1"', '"::1"']),
    "ip interface": (pydantic.IPvAnyInterface, ['"10.0.0.1"']),
    "ip network": (pydantic.IPvAnyNetwork, ['"10.0.0.0/8"', '"2001:db8::/32"']),
    "url": (pydantic.AnyUrl, ['"https://example.com/a?b=c"']),
    "any http url": (pydantic.AnyHttpUrl, ['"http://example.com"']),
    "http url": (pydantic.HttpUrl, ['"https://www.example.com:8080/a/b?x=1&y=2"', '"http://127.0.0.1:8000/"']),
    "file url": (pydantic.FileUrl, ['"file:///etc/hosts"']),
    "ftp url": (pydantic.FtpUrl, ['"ftp://ftp.example.com/a"']),
    "websocket url": (pydantic.WebsocketUrl, ['"wss://example.com/socket"']),
    "any websocket url": (pydantic.AnyWebsocketUrl, ['"ws://localhost:80/"']),
    "amqp": (pydantic.AmqpDsn, ['"amqp://user:pass@host:5672/vhost"']),
    "clickhouse": (pydantic.ClickHouseDsn, ['"clickhouse+native://user:pass@localhost:9000/db"']),
    "cockroach": (pydantic.CockroachDsn, ['"cockroachdb://user@host:2625/db"']),
    "kafka": (pydantic.KafkaDsn, ['"kafka://localhost:9092"']),
    "mariadb": (pydantic.MariaDBDsn, ['"mariadb://user:pass@host:3306/db"']),
    "mongo": (pydantic.MongoDsn, ['"mongodb://user:pass@a.example,b.example:2701/db"']),
    "mysql": (pydantic.MySQLDsn, ['"mysql://user:pass@host:3306/db"']),
    "nats": (pydantic.NatsDsn, ['"nats://localhost:4222"']),
    "postgres": (pydantic.PostgresDsn, ['"postgresql+psycopg://user:pass@db.example.com:5432/shop"']),
    "redis": (pydantic.RedisDsn, ['"redis://:pass@localhost:6379/0"', '"redis://localhost:6379/0"']),
    "snowflake": (pydantic.SnowflakeDsn, ['"snowflake://user:pass@org-account/db"']),
    "url constraints": (Annotated[pydantic.AnyUrl, pydantic.UrlConstraints(allowed_schemes=["ssh"])], ['"ssh://host"']),
    # collections
    "list": (list[int], ["[]", "[1,2]"]),
    "conlist": (pydantic.conlist(int, min_length=1, max_length=2), ["[1]"]),
    "tuple": (tuple[int, str], ['[1,"a"]']),
    "tuple, repeated": (tuple[int, ...], ["[]", "[1,2,3]"]),
    "named tuple": (Point, ["[1]", "[1,2]"]),
    "set": (set[int], ["[1,2]", "[]"]),
    "conset": (pydantic.conset(float, min_length=2), ["[1,2.5]"]),
    "frozenset": (frozenset[str], ['["a","b"]']),
    "set of dates": (Annotated[set[dt.datetime], Field(min_length=2)], [f"[{MOMENT},{LOCAL[:-3]}05Z\"]"]),
    "set of objects": (Annotated[set[Frozen], Field(min_length=2)], ['[{"a":1},{"a":2}]']),
    "set of anything": (set[Any], ['[1,"a"]']),
    "set of keys": (set[Key], ['[{"n":1}]']),
    "deque": (collections.deque[int], ["[1,2]"]),
    "sequence": (Sequence[int], ["[1,2]"]),
    "generator": (Generator[int, None, None], ["[1]"]),
    "hashable": (Hashable, ["1", '"a"']),
    "path like": (os.PathLike[str], ['"a"']),
    "iterable": (Iterable[int], ["[1,2]"]),
    "mapping": (Mapping[str, int], ['{"a":1}']),
    "dict": (dict[str, int], ['{"a":1}']),
    "dict, sizes": (Annotated[dict[str, int], Field(min_length=1, max_length=2)], ['{"a":1}']),
    "dict, keys with a pattern": (dict[Annotated[str, Field(pattern="^[a-c]+$")], bool], ['{"ab":true}']),
    "defaultdict": (collections.defaultdict[str, int], ['{"a":1}']),
    "ordered dict": (collections.OrderedDict[str, int], ['{"a":1}']),
    "counter": (collections.Counter[str], ['{"a":1}']),
    "two keys at least": (Annotated[dict[float, bool], Field(min_length=2)], ['{"1":true,"2.5":false}']),
    # what is chosen
    "literal": (Literal["a", 1, True, None], ['"a"', "1", "true", "null"]),
    "literal of members": (Literal[Colour.RED, Level.LOW], ["1"]),
    "literal of bytes": (Literal[b"x", 1], ["1"]),
    "enum": (Colour, ['"red"', "3"]),
    "int enum": (Level, ["1", "2"]),
    "flags": (Flags, ["1", "2"]),
    "str enum": (Kind, ['"a"']),
    "float enum": (Ratio, ["0.5", "1"]),
    "optional": (int | None, ["null", "1"]),
    "union": (int | str | list[int], ["1", '"a"', "[1]"]),
    "union from left to right": (Annotated[int | str, Field(union_mode="left_to_right")], ["1", '"a"']),
    "discriminated": (Annotated[Cat | Dog, Field(discriminator="kind")], ['{"kind":"cat"}', '{"kind":"wolf"}']),
    "discriminated by a function": (
        Annotated[Annotated[Cat, pydantic.Tag("cat")] | Annotated[Dog, pydantic.Tag("dog")],
                  Discriminator(lambda value: "cat" if value.get("kind") == "cat" else "dog")],
        ['{"kind":"cat"}'],
    ),
    "discriminated by an alias": (Annotated[Renamed | Other, Field(discriminator="kind")], ['{"Kind":"b","n":1}']),
    "optional discriminated": (Annotated[Cat | Dog, Field(discriminator="kind")] | None, ["null", '{"kind":"cat"}']),
    "flag": (Plain, ["1", "2"]),
    # classes
    "root": (pydantic.RootModel[list[int]], ["[1]"]),
    "class in camel case": (Camel, ['{"firstName":"a"}']),
    "class": (Tree, ['{"value":1,"children":[{"value":2}]}']),
    "class by name": (Named, ['{"total":1}']),
    "class with a choice of aliases": (Aliased, ['{"sum":1}']),
    "class that strips": (Stripped, ['{"name":"a b"}']),
    "strict class": (Strictly, []),
    "class with more": (Extra, ['{"x":1,"y":2}']),
    "dataclass": (Pair, ['{"first":1}', '{"first":1,"start":2}']),
    "typed dict": (Open, ['{"x":1}', '{"x":1,"y":"a"}']),
    # markers
    "gt and le": (Annotated[int, at.Gt(2), at.Le(9)], ["3", "9"]),
    "interval": (Annotated[float, at.Interval(ge=0, lt=1)], ["0", "0.5"]),
    "multiple of": (Annotated[int, at.MultipleOf(5)], ["10"]),
    "len": (Annotated[list[int], at.Len(1, 2)], ["[1]"]),
    "lower case": (at.LowerCase[str], ['"ab"']),
    "digits": (at.IsDigit[str], ['"12"']),
    "upper case": (at.UpperCase[str], ['"AB"']),
    "not digits": (Annotated[str, at.Not(str.isdigit)], ['"ab"']),
    "finite": (at.IsFinite[float], ["1.5"]),
    "strict": (Annotated[int, pydantic.Strict()], ["3"]),
    "allow inf nan": (Annotated[float, pydantic.AllowInfNan(False)], ["3"]),
    "omitted on error": (list[pydantic.OnErrorOmit[int]], ["[1]"]),
    "skipped": (pydantic.SkipValidation[int], ["3"]),
    "instance": (pydantic.InstanceOf[int], ["3"]),
}  # fmt: skip

REFUSED: Final[dict[str, Any]] = {
    "file": pydantic.FilePath,
    "folder": pydantic.DirectoryPath,
    "socket": pydantic.SocketPath,
    "import": pydantic.ImportString,
    "class": type[int],
    "pattern of sets": Annotated[str, Field(pattern=r"^[a-z&&[^aeiou]]$")],
    "callable": typing.Callable[[int], int],
    "keys that are lists": dict[pydantic.Json[list[int]], str],
    "keys that are tuples": dict[tuple[int, int], str],
    "path of aliases": pydantic.create_model("M", a=(int, Field(validation_alias=pydantic.AliasPath("b", 0)))),
}

KEYS: Final[dict[str, tuple[Any, list[str]]]] = {
    "int": (int, ["0", "-3", "42"]),
    "bounded int": (Annotated[int, Field(ge=-3, lt=20)], ["-3", "19"]),
    "multiples": (Annotated[int, Field(multiple_of=7)], ["14"]),
    "strict int": (pydantic.StrictInt, []),
    "float": (float, ["0.5", "-1"]),
    "bounded float": (Annotated[float, Field(gt=0.5)], ["1.5"]),
    "bool": (bool, ["true", "false"]),
    "decimal": (decimal.Decimal, ["1.25"]),
    "bounded decimal": (pydantic.condecimal(max_digits=3, decimal_places=1), ["1.5"]),
    "fraction": (fractions.Fraction, ["1/3"]),
    "complex": (complex, ["1+2j"]),
    "str": (str, ["", "Zürich"]),
    "short str": (Annotated[str, Field(max_length=2)], ["ab"]),
    "pattern": (Annotated[str, Field(pattern="^[a-z]+$")], ["ab"]),
    "bytes": (bytes, ["ab"]),
    "date": (dt.date, ["2026-03-04"]),
    "datetime": (dt.datetime, ["2026-03-04T12:30:00"]),
    "aware datetime": (pydantic.AwareDatetime, ["2026-03-04T12:30:00Z"]),
    "past date": (pydantic.PastDate, ["1990-05-17"]),
    "time": (dt.time, ["12:30:00"]),
    "timedelta": (dt.timedelta, ["PT1H"]),
    "uuid": (uuid.UUID, [UUID_4[1:-1]]),
    "uuid4": (pydantic.UUID4, [UUID_4[1:-1]]),
    "path": (pathlib.Path, ["a/b"]),
    "ip": (ipaddress.IPv4Address, ["10.0.0.1"]),
    "url": (pydantic.HttpUrl, ["https://example.com"]),
    "secret": (pydantic.SecretStr, ["a"]),
    "base64": (pydantic.Base64Bytes, ["aGVsbG8="]),
    "json": (pydantic.Json[int], ["3"]),
    "enum": (Colour, ["red"]),
    "int enum": (Level, ["1", "2"]),
    "str enum": (Kind, ["a"]),
    "literal": (Literal["a", "b"], ["a"]),
    "literal of numbers": (Literal[1, "a"], ["a"]),
    "union": (int | dt.date, ["3", "2026-03-04"]),
    "optional": (int | None, ["3"]),
    "any": (Any, ["a"]),
    "zoneinfo": (zoneinfo.ZoneInfo, ["UTC"]),
    "byte size": (pydantic.ByteSize, ["10MB"]),
    "color": (Color, ["red"]),
    "zip": (Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ["a b"]),
    "digits": (at.IsDigit[str], ["12"]),
}

MAILS: Final = {
    "email": (networks.EmailStr, ['"anna.b@example.org"', '"x+y@cs.ox.ac.uk"']),
    "name and email": (networks.NameEmail, ['"Anna Böll <anna@example.org>"', '"anna@example.org"']),
}
"""For which Pydantic needs the package email-validator."""
