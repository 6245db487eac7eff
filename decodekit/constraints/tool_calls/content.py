"""The content of a response that may call tools, as it grows.

<-   "I look it up.<tool_", "call>\\n{"
->   "I look it up."                        what may be the beginning of a call waits
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from decodekit.constraints.tool_calls.format import ToolFormat
from decodekit.constraints.tool_calls.literals import BLANKS, num_held, read

_State: TypeAlias = Literal["open", "content", "calls"]
"""What a text is in: nothing that is certain, its content, or its calls."""


class ContentSplit:
    """One text, as it grows, up to where its calls begin.

    Args:
        has_content: whether content may come; otherwise all is calls.
        is_json: whether the text may be JSON of a schema in place of calls: all that begins no call is content then.
    """

    def __init__(self, format: ToolFormat, has_content: bool = True, is_json: bool = False) -> None:
        self._format = format
        self._ends = format.starts if is_json else format.triggers  # the first of them ends the content
        self._gap = "" if is_json else format.gap  # blanks before it, which are not the content's
        self._state: _State = "content" if is_json else "open" if has_content else "calls"
        self.text = ""
        self.num_read = 0  # where in it the content goes on that was not handed out
        self.calls_at = 0 if self._state == "calls" else None  # from where on it has calls, when that is certain

    def push(self, text: str, is_last: bool = False) -> str:
        """Take what is new; the content that is certain now and was not before."""
        self.text += text
        if self._state == "open":
            self._open(is_last)
        if self._state != "content":
            return ""
        begin = self.num_read
        found = [place for one in self._ends if (place := self.text.find(one, begin)) >= 0]
        end = min(found, default=len(self.text))
        if found:
            self._state, self.calls_at = "calls", end
        elif not is_last:
            end -= max((num_held(self.text, one) for one in self._ends), default=0)
        if found or not is_last:
            for blank in reversed(self._gap):  # each of them may be missing
                end -= end > begin and self.text[end - 1] == blank
        self.num_read = max(begin, end)
        return self.text[begin : self.num_read]

    def _open(self, is_last: bool) -> None:
        """Find out whether content begins, if that is certain now."""
        opener, begun = self._format.opener, read(self.text, self._format.content_begin)
        rest = "" if begun is None else self.text[begun[0] :].lstrip(BLANKS)
        if begun is None or (opener and rest.startswith(opener)):
            self._state, self.calls_at = "calls", 0
        elif begun[1] and (is_last or not (opener and opener.startswith(rest))):
            self._state, self.num_read = "content", begun[0]
