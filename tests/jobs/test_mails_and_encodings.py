"""Folders of mails and logs: what is taken by a pattern, in which encoding it is read, what a mail says."""

from __future__ import annotations

import email.policy
import gzip
import random
from email.message import EmailMessage
from pathlib import Path

import pytest

from decodekit.cli.parts import console
from decodekit.errors import DocumentError, OptionError
from decodekit.jobs.documents import mail
from decodekit.jobs.documents.documents import scan
from decodekit.jobs.documents.encodings import plain_text
from decodekit.jobs.documents.inputs import Input
from decodekit.jobs.documents.mail import mail_text
from tests.commands import Result
from tests.jobs.fakes import FakeLLM, read_jsonl
from tests.sizes import sized

FIELDS = ("--schema", "first, words int, seed int")
FILES = ("a.txt", "b.log", "c.LOG.gz", "d.eml", "old/e.log", "old/f.txt", ".git/g.log", ".h.txt", "i.csv", "k")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id,text\n1,{name}\n" if name == "i.csv" else f"text of {name}")
    (tmp_path / "docs" / "c.LOG.gz").write_bytes(gzip.compress(b"text of c", mtime=0))
    return tmp_path


@pytest.mark.parametrize(
    ("include", "exclude", "taken"),
    [
        ((), (), "a.txt old/f.txt"),
        (("*.log",), (), "a.txt b.log c.LOG.gz old/e.log old/f.txt"),
        (("*.log", "*.eml"), ("old",), "a.txt b.log c.LOG.gz d.eml"),
        (("*.log",), ("*.txt", "old/*"), "b.log c.LOG.gz"),
        (("old/*",), ("A.TXT",), "old/e.log old/f.txt"),
        (("old",), (), "a.txt old/e.log old/f.txt"),
        ((".h.txt",), (), "a.txt .h.txt old/f.txt"),
        ((".git",), ("*.txt",), ".git/g.log"),
        (("*",), ("i.csv",), "a.txt b.log c.LOG.gz d.eml k old/e.log old/f.txt"),
        (("*.log.gz",), ("old",), "a.txt c.LOG.gz"),
    ],
)
def test_patterns(folder: Path, include: tuple[str, ...], exclude: tuple[str, ...], taken: str) -> None:
    found = scan([Input("docs", include=include, exclude=exclude)])
    assert {entry.id for entry in found.entries} == {f"docs/{name}" for name in taken.split()}
    told = {*found.skipped, *found.hidden, *(entry.id for entry in found.entries)}
    if not exclude:
        assert told == {f"docs/{name}" for name in FILES}  # nothing is left out without a word


def test_what_is_left_out_is_told_with_the_option_that_takes_it(folder: Path, llm: FakeLLM) -> None:
    done = Result("extract", "docs", "-o", "out", *FIELDS)
    assert (
        "6 files of folders" in done.err and "2 hidden files, such as docs/.git/g.log; --include .git takes" in done.err
    )
    way = done.err.split("what is text of them: ")[1].split("\n")[0]
    assert way == "--include '*.log' --include '*.eml' --include '*.csv' --include k"
    options = [one.strip("'") for one in way.split()]
    done = Result(
        "extract", "docs", "-o", "out", *FIELDS, *options, "--include", ".*"
    )  # the rest, into the same folder
    assert done.code == console.DONE and "left out" not in done.err
    rows = {row["id"] for row in read_jsonl(folder / "out" / "results.jsonl")}
    assert rows == {f"docs/{name}" for name in FILES if name != "i.csv"} | {"1"}
    assert Result("retry", "out").code == console.DONE
    done = Result("extract", "docs", "-o", "out", *FIELDS, "--include", "*.zip")
    assert done.code == console.DONE
    (folder / "docs" / "z.zip").write_bytes(b"PK\x03\x04")
    done = Result("extract", "docs", "-o", "out", *FIELDS, "--include", "*.zip")
    assert done.code == console.USAGE and "is an archive" in done.err and "--exclude '*.zip'; or" in done.err


TEXT = "Größe: 5 €"


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (TEXT.encode(), "utf-8", TEXT),
        (b"\xef\xbb\xbf" + TEXT.encode(), "utf-8", TEXT),
        (TEXT.encode("cp1252"), "cp1252", TEXT),
        (TEXT.encode("cp1252"), "auto:cp1252", TEXT),
        (TEXT.encode(), "auto:cp1252", TEXT),
        (TEXT.encode("utf-16"), "auto", TEXT),
        (TEXT.encode("utf-32"), "auto:latin-1", TEXT),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "auto", TEXT),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "utf-16", TEXT),
        (TEXT.encode("utf-16-le"), "utf-16-le", TEXT),
        (TEXT.encode("cp1252"), "utf-8", "not UTF-8: byte 0xf6 at offset 2"),
        (TEXT.encode("cp1252"), "auto", "not UTF-8"),
        (b"a\x81", "auto:cp1252", "not CP1252: byte 0x81"),
        (TEXT.encode("utf-16"), "cp1252", "is UTF-16-LE, not CP1252"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "utf-16-le", "is UTF-16-BE"),
        (TEXT.encode("utf-16-le"), "latin-1", "NUL bytes"),
        (b"\xef\xbb\xbfa", "latin-1", "is UTF-8, not LATIN-1"),
    ],
)
def test_encodings(tmp_path: Path, data: bytes, encoding: str, text: str) -> None:
    for name in ("a.txt", "a.eml", "a.log", "a.html"):
        (tmp_path / name).write_bytes(data)
        (entry,) = scan([Input(name, folder=str(tmp_path), encoding=encoding)]).entries
        if text == TEXT and (name, data[2:4]) != ("a.html", b"\0\0"):  # pages are never in UTF-32
            assert entry.fault is None and entry.read() == TEXT
        elif name != "a.html":  # which has words of its own for it, and is of the encoding that its mark says
            assert entry.fault is not None and text in entry.fault.cause


def test_encodings_of_rows(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes("näme;text\n1;é €\n".encode("cp1252"))
    (entry,) = scan([Input("d.csv", "näme", folder=str(tmp_path), encoding="cp1252")]).entries
    assert (entry.id, entry.read()) == ("1", "é €")
    (tmp_path / "d.jsonl").write_bytes('{"id":"é","text":"€"}\n{"id":"b","text":"x"}\n'.encode("cp1252"))
    entries = scan([Input("d.jsonl", folder=str(tmp_path), encoding="auto:cp1252")]).entries
    assert [(entry.id, entry.read()) for entry in entries] == [("é", "€"), ("b", "x")]
    (tmp_path / "d.jsonl").write_bytes('{"id":"é","text":"€"}\n'.encode("utf-16"))
    for encoding in ("utf-8", "auto", "utf-16"):
        with pytest.raises(DocumentError, match=r"UTF-16|utf-16"):
            scan([Input("d.jsonl", folder=str(tmp_path), encoding=encoding)])


@pytest.mark.parametrize("name", ["", "klingon", "hex", "idna", "rot13", "unicode_escape", "auto:", "auto:hex", "a\0b"])
def test_what_is_no_encoding_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="no encoding of texts"):
        Input("docs", encoding=name)


def test_another_encoding_takes_up_what_failed(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes("é".encode("latin-1"))
    done = Result("extract", "a.txt", "-o", "out", *FIELDS)
    assert done.code == console.SOME_FAILED
    assert "--encoding cp1252" in read_jsonl(tmp_path / "out" / "failed.jsonl")[0]["hint"]
    assert Result("extract", "a.txt", "-o", "out", *FIELDS, "--encoding", "latin-1").code == console.DONE
    assert Result("extract", "-", "-o", "two", *FIELDS, "--encoding", "latin-1", stdin=b"\xe9").code == console.DONE
    assert [text.strip() for text in llm.seen] == ["é", "é"]
    done = Result("extract", "a.txt", "-o", "out", *FIELDS)  # an option that was forgotten costs no result
    assert done.code == console.DONE and "1 document that is done cannot be read any more; its result stays" in done.err
    assert len(read_jsonl(tmp_path / "out" / "results.jsonl")) == 1 and len(llm.seen) == 2
    (tmp_path / "a.txt").write_text("b")
    assert "has changed since it was done" in Result("extract", "a.txt", "-o", "out", *FIELDS).err
    done = Result("extract", "a.txt", "-o", "out", *FIELDS, "--encoding", "latin-11")
    assert done.code == console.USAGE and "'latin-11' is no encoding" in done.err


# --- mails ------------------------------------------------------------------------------------------------------------


def message(*contents: tuple[str, str], **fields: str) -> EmailMessage:
    made = EmailMessage(policy=email.policy.SMTP)
    for name, value in {"From": "Jürgen <j@x.org>", "Subject": "Rechnung № 7, " + "lang " * 20, **fields}.items():
        made[name] = value
    for number, (kind, text) in enumerate(contents):
        subtype, _, charset = kind.partition(";")
        if number:
            made.add_alternative(text, subtype=subtype, charset=charset or "utf-8")
        else:
            made.set_content(text, subtype=subtype, charset=charset or "utf-8")
    return made


def test_a_mail_is_its_fields_and_its_words() -> None:
    plain, page = ("plain;latin-1", "Über 5 Euro\n" + "x" * 100), ("html", "<p>Total <b>5</b></p><script>1</script>")
    cases = {
        "plain": (message(plain), plain[1]),
        "html": (message(page), "Total 5"),
        "both": (message(plain, page), plain[1]),
    }
    attached = message(plain, To="a@x.org, b@x.org")
    attached.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="Märkte.pdf")
    attached.add_attachment("raw", subtype="csv", filename="t.csv")
    cases["attached"] = (attached, f"{plain[1]}\n[attachment: Märkte.pdf]\n[attachment: t.csv]")
    outer = message(("plain", "See below."))
    outer.add_attachment(message(page, Subject="inner"))
    outer["X-Other"] = "1"
    for about, (made, body) in cases.items():
        text = mail_text(bytes(made), "m.eml")
        head, _, rest = text.partition("\n\n")
        assert head.splitlines()[0] == "From: Jürgen <j@x.org>", about
        assert "Subject: Rechnung № 7, lang lang" in head and "=?" not in text and "Content-" not in text
        assert rest.strip() == body, about
        assert mail_text(b"From j@x.org Mon Jan  1\n" + bytes(made), "m") == text
    for name, end in (("plain", 1), ("both", 20)):
        assert mail_text(bytes(cases[name][0])[:-end], "m")  # what has lost its end is read as far as it goes
    forwarded = mail_text(bytes(outer).replace(b"attachment", b"inline"), "m")
    assert "See below." in forwarded and "Subject: inner" in forwarded and "Total 5" in forwarded


def test_odd_mails() -> None:
    for text in ("no mail: at all", "", "Name: Ann\nTotal: 5\n", "Dear Ann,\n\nbye"):
        assert mail_text(text.encode(), "m") == text
    assert mail_text(b"Subject: a\n\nb", "m") == "Subject: a\n\nb"
    assert mail_text(b"subject: =?utf-8?q?a?=\n =?utf-8?b?Yg==?= =?x?q?c?= =?utf-8?b?Y?=", "m") == (
        "Subject: ab=?x?q?c?==?utf-8?b?Y?=\n\n"
    )
    latin = b"Subject: a\nContent-Type: text/plain\n\n\xe9"
    assert mail_text(latin, "m", "auto:latin-1").endswith("é")
    head = b"Subject: a\nContent-Type: multipart/mixed; boundary=b\n\n"
    assert mail_text(head + b"--c\n\nno part", "m").endswith("--c\n\nno part")  # a text after all
    assert mail_text(head.replace(b"mixed", b"alternative") + b"no part", "m").endswith("\n\nno part")
    assert mail_text(head + b"--b\n\none\n--b--\n\nend", "m").endswith("\n\none")
    assert mail_text(head + b"--b\none\n--b\ntwo\n\nthree", "m").endswith("\none\ntwo\n\nthree")
    for data, said in [
        (latin, "not UTF-8"),
        (b"Subject: a\nContent-Type: text/plain; charset=klingon\n\nb", "declares the encoding 'klingon'"),
        (b"Subject: a\nContent-Type: text/plain; charset=utf-8\n\n\xe9", "declares the encoding 'utf-8'"),
        (b"Subject: a\nContent-Transfer-Encoding: base64\n\nabc", "no base64"),
        (b"Subject: a\nContent-Type: text/plain" + b";a=b" * 2000 + b"\n\nb", "more than 4,096 characters"),
        (head + b"--b\n\n\n" * 1002, "more than 1,000 parts"),
        (b"Subject: a" + b"\n " * mail.MAX_HEAD + b"\n\nb", "more than 1,048,576 bytes"),
        (head + (b"--b\nX: " + b"y" * 5000 + b"\n\nz\n") * 300, "more than 1,048,576 bytes"),
    ]:
        with pytest.raises(DocumentError, match=said):
            mail_text(data, "m")
    nested = b"Subject: a\n"
    for number in range(mail.MAX_DEPTH + 2):
        nested += b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (number, number)
    with pytest.raises(DocumentError, match="20 in one another"):
        mail_text(nested, "m")


PIECES = [
    *("text/plain", "text/html", "multipart/mixed", "multipart/alternative", "message/rfc822", "attachment", "inline"),
    *("; charset=", ";charset*=", "utf-8''a", "klingon", "utf-16", "hex", "; filename=", "; filename*=", "%zz", "%41"),
    *(
        "; filename*0*=",
        "; boundary=",
        "; boundary*0=",
        "; boundary*=",
        "b",
        "'",
        "''",
        '"',
        ";",
        "=",
        "*",
        "*0*",
        "\\",
    ),
    *(" ", "\t", "é", "=?utf-8?q?a?=", "(", ")", "\x0b", "\x85", "base64", "quoted-printable"),
]
BODIES = [
    b"",
    b"x",
    b"--b\n\nfoo\n--b--",
    b"--b\nContent-Type: text/html\n\n<p>x",
    b"Subject: c\n\nd",
    b"\xff\0",
    b"=zz=\n",
    b"QQ",
]


@sized("num_mails", 3_000, slow=100_000)
def test_mails_of_any_pieces_are_texts_or_failures(num_mails: int) -> None:
    """Python's reader of parameters raises a TypeError for ``b*=; b*0=``, for one."""
    rng = random.Random(7)
    num_failed = 0
    for _ in range(num_mails):
        data = b"Subject: a\n"
        for name in ("Content-Type", "Content-Disposition", "Content-Transfer-Encoding", "From"):
            data += f"{name}: {''.join(rng.choices(PIECES, k=rng.randrange(6)))}\n".encode()
        try:
            assert mail_text(data + b"\n" + b"".join(rng.choices(BODIES, k=2)), "m", "auto:cp1252")
        except DocumentError:
            num_failed += 1
    assert 0 < num_failed < num_mails / 2


def test_lines_of_other_encodings_cannot_be_divided() -> None:
    assert plain_text(b"a", "p", "cp1252", is_line=True) == "a"
    with pytest.raises(DocumentError, match="cannot be divided in utf-16"):
        plain_text("a".encode("utf-16-le"), "p", "utf-16", is_line=True)
