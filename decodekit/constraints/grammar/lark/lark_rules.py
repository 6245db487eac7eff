"""Grammars in Lark's language, as rules.

Every text of a grammar is accepted, however it is divided into terminals: what Lark does with ``parser="earley"`` and
``lexer="dynamic_complete"``, with two of its limits gone. Lark tries of the ways in which a pattern matches those that
begin with the longest that `re` finds, and of an ignored terminal the longest only; here every word of a terminal is
one. A terminal's pattern sees nothing outside of the terminal (see the module `terminals`).

What shapes the tree (aliases, ``?rule``, ``!rule``, ``_rule``) leaves the texts as they are. So do priorities: they
choose among the derivations of one text. It is only for ``lexer="longest"`` (see the room `longest`) that the priority
of a terminal decides which texts there are: there each terminal labels the ends of its words with its rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from decodekit.constraints.grammar.lark import lark_tree as tree
from decodekit.constraints.grammar.lark.definitions import Definitions, GrammarSymbol, Scope
from decodekit.constraints.grammar.lark.terminals import Rank, Ranks, Terminals, key_of
from decodekit.constraints.grammar.rules import (
    EMPTY_TEXT,
    Expression,
    Inline,
    RuleRef,
    Rules,
    SpecialToken,
    Terminal,
    alternatives,
    repeated,
    sequence,
)
from decodekit.constraints.grammar.source import Source, SourcePosition, nearest
from decodekit.constraints.language import ir
from decodekit.constraints.language.node import Node
from decodekit.errors import InvalidConstraintError, ResourceLimitError, UnsupportedSchemaError

MAX_INSTANCES: Final = 10_000
"""Bound on the templates with their arguments that one grammar may lead to."""
MAX_INSTANCE_NAME: Final = 1_000
"""Bound on the characters of a template with its arguments, written out: on how deep templates stand in arguments."""
MAX_PARTS: Final = 2_000_000
"""Bound on the parts of all rules."""

Bindings: TypeAlias = Mapping[str, "Expression | GrammarSymbol"]
"""What the parameters of a template stand for; an entry is itself a template."""


def load_rules(
    source: Source, start: str = "start", files: Mapping[str, str] | None = None, lexer: str = "scannerless"
) -> Rules:
    """The rules of a grammar that are reached from the start. For `files`, see `Definitions`. Errors: see `Grammar`."""
    return _Lowering(Definitions(source, files), lexer).rules(start)


class _Lowering:
    """From definitions to rules, one rule after the other as they are reached."""

    def __init__(self, definitions: Definitions, lexer: str) -> None:
        self.definitions = definitions
        self.terminals = Terminals(definitions)
        self.ranks = Ranks(definitions) if lexer == "longest" else None
        self.nameless: dict[tuple[str, str, str] | int, Terminal] = {}
        self.reached: dict[str, Terminal] = {}
        self.expressions: dict[str, Expression] = {}
        self.agenda: list[tuple[str, GrammarSymbol, Bindings]] = []
        self.instances: dict[tuple[str, tuple[Expression | str, ...]], str] = {}
        self.num_parts = 0

    def rules(self, start: str) -> Rules:
        self.check_names()
        entry = self.definitions.entries.get(start)
        if entry is None:
            rules = (name for name, other in self.definitions.entries.items() if not other.is_terminal)
            hint = nearest(start, rules) or 'start="..." with the name of a rule'
            raise InvalidConstraintError(
                f"there is no rule {start!r} to start from", at=self.definitions.scope.source.file, hint=hint
            )
        if entry.is_terminal or entry.parameters:
            what = "a terminal" if entry.is_terminal else "a template"
            entry.place.fail(
                f"{start!r} is {what}, and a text starts from a rule", 'start="..." with the name of a rule'
            )
        self.reach(entry.name, entry, {})
        while self.agenda:
            name, entry, bindings = self.agenda.pop()
            parts = (self.lower(item, scope, bindings) for item, scope in entry.parts)
            self.expressions[name] = alternatives(*parts)
        ignored = [self.ignored(item) for item in self.definitions.ignored]
        return Rules(self.expressions, start, ir.choice(*ignored) if ignored else None, self.reached)

    def check_names(self) -> None:
        """Look up every name in the grammar itself, also in what is never reached."""
        scope = self.definitions.scope
        for entry in self.definitions.entries.values():
            for item, inner in entry.parts:
                for parameter in entry.parameters:
                    if inner.qualified(parameter) in self.definitions.entries:
                        entry.place.fail(f"the parameter {parameter!r} has the name of a rule", "another name")
                if inner.source is scope.source:
                    for part in tree.walk(item):
                        if isinstance(part, tree.Name) and part.name not in entry.parameters:
                            self.definitions.look_up(part, inner)

    def ignored(self, item: tree.Term) -> Node:
        scope = self.definitions.scope
        groups = tree.Series | tree.Options | tree.Counted
        at = next((part.at for part in tree.walk(item) if not isinstance(part, groups)), 0)
        if isinstance(item, tree.Name) and not item.arguments:
            terminal = self.lower_name(item, scope, {})
            if isinstance(terminal, Terminal):
                return terminal.node
        return self.anonymous(item, scope, scope.place(at), "what is ignored").node

    def reach(self, name: str, entry: GrammarSymbol, bindings: Bindings) -> RuleRef:
        """Refer to a rule, or to a template with its arguments."""
        if name not in self.expressions:
            self.expressions[name] = EMPTY_TEXT  # until it is its turn
            self.agenda.append((name, entry, bindings))
        return RuleRef(name)

    def lower(self, item: tree.Term, scope: Scope, bindings: Bindings) -> Expression:
        """An item of a rule. The recursion is as deep as the brackets, at most `source.MAX_DEPTH`."""
        if isinstance(item, tree.Series):
            return sequence(*[self.lower(part, scope, bindings) for part in item.items])
        if isinstance(item, tree.Options):
            return alternatives(*[self.lower(part, scope, bindings) for part in item.options])
        if isinstance(item, tree.Counted):
            return repeated(self.lower(item.item, scope, bindings), item.min, item.max)
        place = scope.place(item.at)
        if self.ranks is not None and isinstance(item, tree.TokenName | tree.Json):
            what = "a special token" if isinstance(item, tree.TokenName) else "%json"
            place.fail(f'{what} is not supported with lexer="longest"', 'lexer="scannerless"', UnsupportedSchemaError)
        self.num_parts += 1
        if self.num_parts > MAX_PARTS:
            place.fail(f"the rules have more than {MAX_PARTS:,} parts", "fewer templates", ResourceLimitError)
        if isinstance(item, tree.Name):
            return (self.lower_usage if item.arguments else self.lower_name)(item, scope, bindings)
        if isinstance(item, tree.Quoted) and not item.ignores_case and self.ranks is None:
            return Terminal(ir.literal(item.text.encode()), _shown(item)) if item.text else EMPTY_TEXT
        if isinstance(item, tree.TokenName):
            return alternatives(*map(SpecialToken, item.tokens))
        if isinstance(item, tree.Json):
            return self.lower_json(item, place)
        return self.anonymous(item, scope, place, _shown(item))

    def anonymous(self, item: tree.Term, scope: Scope, place: SourcePosition, name: str) -> Terminal:
        """A terminal without a name. With ranks, all that are written alike are one."""
        if self.ranks is None:
            return Terminal(self.terminals.words(((item, scope),), place), name)
        entry = self.ranks.alias(item)
        if entry is not None:
            return self.named(entry)
        key = key_of(item) or len(self.nameless)
        if key not in self.nameless:
            node = self.terminals.words(((item, scope),), place)
            rank = self.ranks.of(((item, scope),), f"__anon_{len(self.nameless)}")  # no name of a terminal
            self.nameless[key] = _ranked(node, rank, name, place)
        return self.nameless[key]

    def named(self, entry: GrammarSymbol) -> Terminal:
        name = entry.name
        if name not in self.reached:
            node = self.terminals.words(entry.parts, entry.place, (name,))
            rank = None if self.ranks is None else self.ranks.of(entry.parts, name, entry.priority)
            self.reached[name] = Terminal(node, name) if rank is None else _ranked(node, rank, name, entry.place)
        return self.reached[name]

    def lower_name(self, item: tree.Name, scope: Scope, bindings: Bindings) -> Expression:
        bound = bindings.get(item.name)
        if bound is not None and not isinstance(bound, GrammarSymbol):
            return bound
        entry = bound or self.definitions.look_up(item, scope)
        if entry.parameters:
            scope.place(item.at).fail(
                f"{item.name!r} is a template and stands here without arguments",
                f"{item.name}{{{', '.join(entry.parameters)}}}",
            )
        return self.named(entry) if entry.is_terminal else self.reach(entry.name, entry, {})

    def lower_usage(self, item: tree.Name, scope: Scope, bindings: Bindings) -> Expression:
        """A template with its arguments: a rule of its own."""
        place = scope.place(item.at)
        template = bindings.get(item.name) or self.definitions.look_up(item, scope)
        if not isinstance(template, GrammarSymbol) or not template.parameters:
            place.fail(f"{item.name!r} is no template", f"{item.name} without arguments")
        num_wanted, num_given = len(template.parameters), len(item.arguments)
        if num_wanted != num_given:
            place.fail(f"{item.name!r} takes {num_wanted} arguments, and {num_given} are given")
        arguments = [self.argument(argument, scope, bindings) for argument in item.arguments]
        key = (template.name, tuple(arg.name if isinstance(arg, GrammarSymbol) else arg for arg in arguments))
        name = self.instances.get(key)
        if name is None:
            name = f"{template.name}{{{', '.join(map(_shown_argument, arguments))}}}"
            if len(name) > MAX_INSTANCE_NAME or len(self.instances) >= MAX_INSTANCES:
                place.fail(
                    f"the template {template.name!r} leads to more than {MAX_INSTANCES:,} rules, or without end",
                    "a template that does not use itself with arguments that grow",
                    ResourceLimitError,
                )
            if name in self.expressions:  # arguments that look alike
                name = f"{name}#{len(self.instances)}"
            self.instances[key] = name
        return self.reach(name, template, dict(zip(template.parameters, arguments, strict=True)))

    def argument(self, item: tree.Term, scope: Scope, bindings: Bindings) -> Expression | GrammarSymbol:
        """The expression of an argument of a template; a template without arguments as itself."""
        if isinstance(item, tree.Name) and not item.arguments:
            bound = bindings.get(item.name) or self.definitions.look_up(item, scope)
            if not isinstance(bound, GrammarSymbol) or bound.parameters:
                return bound
        return self.lower(item, scope, bindings)

    def lower_json(self, item: tree.Json, place: SourcePosition) -> Expression:
        if isinstance(item.schema, dict) and "x-guidance" in item.schema:
            place.fail('"x-guidance" is not supported', "leaving it out", UnsupportedSchemaError)
        if not isinstance(item.schema, dict | bool):
            place.fail("a JSON Schema is an object, true or false")
        from decodekit.constraints.json_schema import JsonSchema  # few grammars need it

        with place.located():
            constraint = JsonSchema(item.schema)
            guard = constraint.guard()
        if guard is not None:
            place.fail(
                "the schema has keywords that need a whole text to be checked, which is not supported in a grammar",
                "a schema without what dk.check lists as guarded, or JsonSchema by itself",
                UnsupportedSchemaError,
            )
        return Inline(constraint)


def _ranked(node: Node, rank: Rank, name: str, place: SourcePosition) -> Terminal:
    if node.is_nullable:
        place.fail(
            f'the terminal {name} may be empty, which no lexeme is with lexer="longest"',
            "an optional terminal in the rules",
        )
    return Terminal(ir.concat(node, ir.accept(rank)), name)


def _shown(item: tree.Term) -> str:
    """An item as it stands in a grammar."""
    if isinstance(item, tree.Quoted):
        return f'"{item.text}"{"i" * item.ignores_case}'
    if isinstance(item, tree.CharRange):
        return f'"{item.low}".."{item.high}"'
    assert isinstance(item, tree.Pattern)
    return f"/{item.pattern}/{item.flags}"


def _shown_argument(argument: Expression | GrammarSymbol) -> str:
    if isinstance(argument, GrammarSymbol | RuleRef | Terminal):
        return argument.name or "?"
    return str(argument.token) if isinstance(argument, SpecialToken) else type(argument).__name__
