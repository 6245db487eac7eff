"""The words of an HTML page by a tree: BeautifulSoup makes it, and each element is asked for in turn. Quadratic."""

from __future__ import annotations

import re

import bs4

UNSEEN = ("script", "style", "template", "noscript", "svg", "math")
LINES = re.compile(
    "address|article|aside|blockquote|body|caption|center|d[dlt]|details|dialog|dir|div|fieldset|figcaption|figure|"
    "footer|form|h[1-6]|header|hr|html|legend|li|main|menu|nav|ol|option|p|pre|section|select|summary|table|tbody|"
    "textarea|tfoot|thead|title|tr|ul"
)


def html_text(source: str) -> str:
    soup = bs4.BeautifulSoup(source, "html.parser")
    for tag in soup.find_all(UNSEEN):
        tag.decompose()
    for string in soup.find_all(string=True):
        if string.find_parent("pre") is None:
            string.replace_with(type(string)(re.sub(r"\s+", " ", string)))
    for tag in soup.find_all("br"):
        tag.replace_with("\n")
    for tag in soup.find_all(["td", "th"]):
        tag.append("\t")
    for tag in soup.find_all(lambda tag: LINES.fullmatch(tag.name) is not None):
        tag.insert_before("\n")
        tag.append("\n")
    lines = (re.sub(r" ?\t ?", "\t", line).strip() for line in soup.get_text().split("\n"))
    return "\n".join(line for line in lines if line)
