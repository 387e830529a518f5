"""Each statement that comes from a paper says where it stands there."""

import re
from pathlib import Path

import pytest

CHAPTERS = sorted((Path(__file__).resolve().parent.parent / "chapters").glob("*.md"))
CITE = re.compile(r"\{cite:[tp]\}`([^`]+)`")
PLACE = re.compile(
    r"\babstract\b|\b(Theorem|Proposition|Corollary|Lemma|Claim|Definition|Figure"
    r"|[Ss]ection|[Ee]quation|[Cc]hapter)s? \d"
)
READING = re.compile(r"^## (Further reading|Reading list)$.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
# Cited for a name, a method, a data set or an experiment, never for a statement.
CREDITS = {
    "Allen1974", "Antognini2019", "Arias1998", "Arora2020", "Cheng2024", "Cho2009", "Cortes2012",
    "Dalalyan2008", "Daniely2016", "Demsar2006", "Fernandez2014", "Geiger2020", "Golub1979",
    "He2015", "Holm1979", "Lee2020", "Lewkowycz2020", "Li2022", "Long2021", "Mercer1909",
    "Nadeau2003", "Radhakrishnan2024", "Wainberg2016", "Williams1996", "Williams2001",
    "Yaida2020", "YangTransfer2021", "Yao2007", "Yu2016", "Zhang2017",
}  # fmt: skip


def placed(text: str) -> tuple[set[str], set[str]]:
    """The keys that a text cites outside its reading list, and those with a place beside them."""
    text = READING.sub("", text)
    cited, found = set(), set()
    for cite in CITE.finditer(text):
        cited.add(cite[1])
        if PLACE.search(text[max(0, cite.start() - 60) : cite.end() + 500].replace("\n", " ")):
            found.add(cite[1])
    return cited, found


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_a_cited_statement_names_its_place(page):
    cited, found = placed(page.read_text())
    missing = cited - found - CREDITS
    assert not missing, (
        f"add (Theorem 3), (section 2) or (abstract), or list as a credit: {missing}"
    )


def test_a_citation_without_a_place_is_noticed():
    bare = "It holds ({cite:t}`Du2019`).\n\n## Further reading\n\n- {cite:t}`Lee2019`: Theorem 1."
    assert placed(bare) == ({"Du2019"}, set())
    assert placed(bare.replace("`)", "`, Theorem 4.1)")) == ({"Du2019"}, {"Du2019"})


def test_every_entry_of_the_bibliography_is_cited_and_no_credit_is_idle():
    text = "".join(page.read_text() for page in CHAPTERS)
    entries = re.findall(
        r"^@\w+\{(\w+),", (CHAPTERS[0].parent / "references.bib").read_text(), re.M
    )
    cited = set(CITE.findall(text))
    assert set(entries) == cited
    assert cited >= CREDITS
