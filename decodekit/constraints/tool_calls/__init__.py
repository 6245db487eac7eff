"""Calls of tools: free text, then calls in the format of a family of models, each with the arguments that it takes."""

from decodekit.constraints.tool_calls.formats import FORMATS
from decodekit.constraints.tool_calls.response import ToolCall, ToolResponse, Tools, tools, tools_of_request
from decodekit.constraints.tool_calls.tool import Tool

__all__ = ["FORMATS", "Tool", "ToolCall", "ToolResponse", "Tools", "tools", "tools_of_request"]
