"""Context-free grammars as constraints: front ends for Lark and GBNF, rules, and their frames."""

from decodekit.constraints.grammar.grammar import Grammar as Grammar
