"""Calls of tools: free text, then calls in the format of a family of models, each with the arguments that it takes."""

from decodekit.constraints.tool_calls.format import ToolFormat
from decodekit.constraints.tool_calls.formats import AUTO, FORMATS
from decodekit.constraints.tool_calls.response import ToolResponse, Tools, tools, tools_of_request
from decodekit.constraints.tool_calls.tool import Tool, ToolCall

__all__ = ["AUTO", "FORMATS", "Tool", "ToolCall", "ToolFormat", "ToolResponse", "Tools", "tools", "tools_of_request"]
