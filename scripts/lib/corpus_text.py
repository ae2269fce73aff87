"""Plain text from the forms that Debian's documentation comes in: HTML, Info, POD, and plain text itself."""

import gzip
import html.parser
import re

KINDS = {".html": "html", ".htm": "html", ".xhtml": "html", ".info": "info", ".pod": "pod", ".txt": "text",
         ".text": "text", ".rst": "text", ".md": "text", ".adoc": "text", ".asciidoc": "text", ".py": "text"}
INFO_PART = re.compile(r"\.info(-\d+)?$")


def kind_of(name, default=None):
    """The form of a file by its name, without .gz; None: not documentation."""
    name = name.removesuffix(".gz").lower()
    if INFO_PART.search(name):
        return "info"
    at = name.rfind(".")
    return KINDS.get(name[at:], default) if at > 0 else default


def read(path):
    """The bytes of a file as text: UTF-8, else Latin-1."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


class _HtmlText(html.parser.HTMLParser):
    BLOCKS = set("address article aside blockquote body caption center dd details div dl dt fieldset figcaption figure "
                 "form h1 h2 h3 h4 h5 h6 header hr legend li main ol p pre section summary table tbody thead tr "
                 "ul".split())
    PARAGRAPHS = set("blockquote dl figure h1 h2 h3 h4 h5 h6 ol p pre table ul".split())
    SKIPPED = set("head script style nav footer svg math button select noscript template iframe object".split())
    CONTAINERS = set("a aside div footer header nav ol section span table td ul".split())
    VOID = set("area base br col embed hr img input link meta param source track wbr".split())
    # What surrounds the text on every page of the usual generators.
    FURNITURE = re.compile(r"\b(headerlink|nav\w*|sphinxsidebar\w*|sidebar\w*|related|footer\w*|breadcrumbs?|toc\w*|"
                           r"contents|menu\w*|header_?bar|mini-?toc|index-?nav|linenos|lineno)\b", re.IGNORECASE)

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.language = ""
        self.pieces = []
        self.skipping = []  # open elements from the outermost that is left out
        self.preformatted = 0

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "html":
            self.language = attributes.get("lang") or attributes.get("xml:lang") or ""
        if tag in self.VOID:
            if not self.skipping and tag in ("br", "hr"):
                self.pieces.append("\n")
            return
        names = f"{attributes.get('class') or ''} {attributes.get('role') or ''}"
        if tag == "body":
            self.skipping.clear()  # of a head that was not closed
        is_furniture = tag in self.CONTAINERS and self.FURNITURE.search(names)
        if self.skipping or tag in self.SKIPPED or is_furniture:
            self.skipping.append(tag)
            return
        if tag == "pre":
            self.preformatted += 1
        if tag in self.PARAGRAPHS:
            self.pieces.append("\n\n")
        elif tag in self.BLOCKS:
            self.pieces.append("\n")
        if tag == "li":
            self.pieces.append("- ")
        elif tag in ("td", "th"):
            self.pieces.append("  ")

    def handle_endtag(self, tag):
        if self.skipping:
            if tag in self.skipping:  # closes what was left open inside as well
                while self.skipping.pop() != tag:
                    pass
            return
        if tag == "pre":
            self.preformatted = max(0, self.preformatted - 1)
        if tag in self.PARAGRAPHS:
            self.pieces.append("\n\n")
        elif tag in self.BLOCKS:
            self.pieces.append("\n")

    def handle_data(self, data):
        if not self.skipping:
            self.pieces.append(data if self.preformatted else re.sub(r"\s+", " ", data))


def _from_html(source):
    parser = _HtmlText()
    parser.feed(source)
    parser.close()
    if parser.language and not parser.language.lower().startswith("en"):
        return ""
    return "".join(parser.pieces)


def _from_info(source):
    nodes = []
    for node in source.split("\x1f")[1:]:
        node = node.lstrip("\n\f")
        if node.startswith("File:"):
            body = node.partition("\n")[2]
            nodes.append(re.sub(r"^\* Menu:\n(.|\n)*?(?=^[^*\s]|\Z)", "", body, flags=re.MULTILINE))
    return "\n\n".join(nodes)


POD_NAMES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/", "amp": "&", "quot": '"'}


def _pod_code(match):
    letter, text = match.group(1), match.group(2).strip()
    if letter in "XZ":
        return ""
    if letter == "E":
        return POD_NAMES.get(text, "")
    return text.partition("|")[0] if letter == "L" else text


def _from_pod(source):
    source = re.sub(r"^=(begin|for)\b(.|\n)*?(^=(end|cut)\b.*$|\n\n)", "", source, flags=re.MULTILINE)
    source = re.sub(r"^=(?:head\d|item|over *\d*|back|pod|cut|encoding)\b *", "", source, flags=re.MULTILINE)
    source = re.sub(r"([BCEFILSXZ])<<+ (.*?) >>+", _pod_code, source)
    for _ in range(4):  # codes inside codes, from the innermost
        source = re.sub(r"\b([BCEFILSXZ])<([^<>]*)>", _pod_code, source)
    return source


READERS = {"html": _from_html, "info": _from_info, "pod": _from_pod, "text": str}


def tidy(text):
    """No control characters, no white space at line ends, at most one empty line in a row."""
    text = text.replace("\r\n", "\n").replace("\xa0", " ").expandtabs(8)
    text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\ufeff\u00ad¶]", "", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def text_of(path, kind):
    """The tidied text of a file of that kind; of a page that says it is not in English, none."""
    return tidy(READERS[kind](read(path)))


def is_english_text(text):
    """Whether it is worth reading: long enough, mostly Latin letters, and with English words if it has words."""
    if len(text) < 400:
        return False
    letters = sum(map(str.isalpha, text))
    foreign = len(text.encode()) - len(text)
    if letters < 0.5 * len(text) or foreign > 0.05 * len(text):
        return False
    words = re.findall(r"[a-z]+", text[:100_000].lower())
    common = sum(word in ("the", "of", "to", "and", "is", "in", "a", "for", "self", "if", "return") for word in words)
    return common > 0.05 * len(words)
