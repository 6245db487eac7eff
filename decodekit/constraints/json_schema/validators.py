"""The validators around the values of a type: which of them a schema says, and which have to be asked.

EmailStr._validate                 said by the format "email"
PaymentCardNumber.validate         asked by a guard, beside a pattern of digits
Invoice.has_a_total                asked when the text has ended: it is a user's
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pydantic.errors import PydanticInvalidForJsonSchema

from decodekit.records.strict_json import pointer_of

Json: TypeAlias = dict[str, Any]

ASCII: Final = r"^[\x00-\x7f]*$"
_MARK: Final = "x-decodekit-asked"
_BYTE_SIZE: Final = r"^[0-9]{1,9}(\.[0-9]{1,3})? ?(B|[KMGTPE]i?B|[kMGTPE]b)$"
_CARD: Final = r"^[0-9]*$"
BASE64: Final = ("[A-Za-z0-9+/]", "[A-Za-z0-9_-]")


class AskedValidator(NamedTuple):
    """A validator that the mask knows nothing of.

    Attributes:
        pointer: the schema of the values that it is asked about, as a URI fragment.
        name: what it is called, or what it asks for.
        status: ``"guard"``: asked before a text is finished, which may be taken back; ``"end"``: asked when the text
            has ended, so that what it refuses is an `InvalidValueError`.
    """

    pointer: str
    name: str
    status: Literal["guard", "end"]


def marks_of(schema: Any) -> tuple[Any, tuple[AskedValidator, ...]]:
    """A schema without its marks, and what they say."""
    found: list[AskedValidator] = []

    def cleaned(value: Any, pointer: str) -> Any:
        if isinstance(value, list):
            return [cleaned(one, f"{pointer}/{index}") for index, one in enumerate(value)]
        if not isinstance(value, dict):
            return value
        for when, name in value.get(_MARK, ()):
            asked = AskedValidator(pointer, name, when)
            if asked not in found:
                found.append(asked)
        below = ((key, one) for key, one in value.items() if key != _MARK)
        return {key: cleaned(one, pointer + pointer_of([key])) for key, one in below}

    return cleaned(schema, "#"), tuple(found)


def marked(found: Json, when: Literal["guard", "end"], name: str) -> Json:
    """A schema with a mark: a validator that has to be asked, and when."""
    marks = found.get(_MARK, [])
    return found if [when, name] in marks else {**found, _MARK: [*marks, [when, name]]}


def with_patterns(found: Json, patterns: Iterable[str]) -> Json:
    """A schema of strings with further patterns."""
    for pattern in patterns:
        if "pattern" not in found:
            found = {**found, "pattern": pattern}
        else:
            found = {**found, "allOf": [*found.get("allOf", ()), {"pattern": pattern}]}
    return found


def base64(letter: str) -> str:
    """The pattern of bytes in base64, with a class for its letters. The bits that pad the last byte are zero."""
    return f"^({letter}{{4}})*({letter}[AQgw]==|{letter}{{2}}[AEIMQUYcgkosw048]=)?$"


def _base64_text(letters: str) -> str:
    """Base64 of ASCII: the highest bit of each byte is not set."""
    order = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" + letters
    groups = ["".join(c for n, c in enumerate(order) if not n & bit).replace("-", "\\-") for bit in (32, 8, 2, 0)]
    first, second, third, fourth = (f"[{group}]" for group in groups)
    return f"^({first}{second}{third}{fourth})*({first}{second}==|{first}{second}{third}=)?$"


def _encoded(found: Json, function: Any) -> Json:
    """Bytes or a text in base64; what another encoder reads is asked for at the end."""
    owner = function.__self__
    name = getattr(owner.encoder, "__qualname__", type(owner.encoder).__qualname__)
    if name not in ("Base64Encoder", "Base64UrlEncoder"):
        return marked(found, "end", f"{name}.decode")
    letters = "+/" if name == "Base64Encoder" else "-_"
    is_text = type(owner).__name__ == "EncodedStr"
    return with_patterns(found, [_base64_text(letters) if is_text else base64(BASE64[letters == "-_"])])


_PREDICATES: Final = {
    "str.isdigit": "^[0-9]+$",
    "not str.isdigit": "^[^0-9]+$",
    "str.isascii": ASCII,
    "str.islower": "^[^A-Z]*[a-z][^A-Z]*$",
    "str.isupper": "^[^a-z]*[A-Z][^a-z]*$",
}
"""Patterns of texts that a predicate accepts, by its name."""

_TOLD: Final[dict[str, Callable[[Json, Any], Json]]] = {
    **dict.fromkeys(
        (
            "EmailStr._validate", "NameEmail._validate", "Color._validate", "forbid_inf_nan_check", "attrgetter",
            "IPvAnyAddress._validate", "IPvAnyInterface._validate", "IPvAnyNetwork._validate", "defaultdict_validator",
            "validate_str_is_valid_iana_tz", "GenerateSchema._path_schema", "GenerateSchema._literal_schema",
            "Secret.__get_pydantic_core_schema__", "_SecretField.__get_pydantic_core_schema__", "sequence_validator",
            "_BaseUrl.__get_pydantic_core_schema__", "_BaseMultiHostUrl.__get_pydantic_core_schema__",
        ),
        lambda found, function: found,
    ),
    **dict.fromkeys(("EncodedBytes.decode", "EncodedStr.decode_str"), _encoded),
    "ByteSize._validate": lambda found, function: {
        "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _BYTE_SIZE}]
    },
    "PaymentCardNumber.validate": lambda found, function: marked(
        with_patterns(found, [_CARD]), "guard", "PaymentCardNumber.validate"
    ),
}  # fmt: skip
"""Validators of Pydantic of which a schema says all, by name, with what it says."""
_REFUSED: Final = {
    "PathType.validate_file": "whether a file exists is not told from its path; Path is any path",
    "PathType.validate_directory": "whether a folder exists is not told from its path; Path is any path",
    "PathType.validate_socket": "whether a socket exists is not told from its path; Path is any path",
    "import_string": "ImportString imports what is written",
}
"""Validators whose types are refused, with the reason."""


def name_of(function: Any, kind: str = "__qualname__") -> str:
    """The qualified name of a validator, or of its type; of a partial function that of the whole one."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, kind, getattr(type(function), kind)))


def module_of(function: Any) -> str:
    """Where a validator comes from."""
    return name_of(function, "__module__")


def asked_about(found: Json, schema: Any) -> Json:
    """The schema of the values that a validator of Pydantic's core schema is asked about, with a mark for the rest.

    Raises:
        PydanticInvalidForJsonSchema: a type that is refused.
    """
    function = schema["function"]["function"]
    name = name_of(function)
    is_pydantic = module_of(function).startswith("pydantic.")
    told = _TOLD.get(name.rpartition(".<locals>")[0] or name)
    if told is not None and (is_pydantic or module_of(function) == "operator"):
        return told(found, function)
    if name in _REFUSED and is_pydantic:
        raise PydanticInvalidForJsonSchema(_REFUSED[name])
    if name.endswith("<locals>.val_func") and is_pydantic:  # `Predicate` or `Not` of annotated_types
        asked = next(cell.cell_contents for cell in function.__closure__ if hasattr(cell.cell_contents, "func"))
        name, is_ours = name_of(asked.func), module_of(asked.func) in ("builtins", "math", "annotated_types", "None")
        if type(asked).__name__ == "Not":
            name = f"not {name}"
        found = with_patterns(found, [_PREDICATES[name]] if name in _PREDICATES else [])
        return marked(found, "guard" if is_ours else "end", name)
    return marked(found, "guard" if is_pydantic else "end", name)
