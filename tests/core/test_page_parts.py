"""Components with numbers and text: values against their arguments, hostile names, links."""

from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.pages import list_rows, parse
from vitrine.core.page_parts import (
    THIN_SPACE,
    ClassBar,
    ClassBars,
    Commands,
    Details,
    Facts,
    Headline,
    Interval,
    Ladder,
    Link,
    Note,
    Paragraph,
    Part,
    Row,
    Rung,
    Subheading,
    Table,
    Unavailable,
    escape,
    format_short_percent,
    link_file,
)

HOSTILE = "</p><script>alert('1')</script>\"&\x1b[31m\u202egpj\udce9"


@pytest.mark.parametrize(
    "part",
    [
        Headline(HOSTILE, HOSTILE, HOSTILE, Interval(0.5, baseline=0.1), HOSTILE),
        Facts([(HOSTILE, HOSTILE)]),
        Table((HOSTILE,), [(HOSTILE,), (Link(HOSTILE, "a.jpg"),), (Link(HOSTILE, None),)]),
        Ladder([Rung(HOSTILE, HOSTILE, HOSTILE, Interval(0.5), outcome=HOSTILE)], is_zoomed=True),
        Unavailable(HOSTILE),
        ClassBars([ClassBar(HOSTILE, 1, 2, Interval(0.5), HOSTILE)]),
        Details(HOSTILE, [Paragraph(HOSTILE), Note(HOSTILE), Subheading(HOSTILE), Row(HOSTILE, [])]),
        Commands([HOSTILE]),
    ],
    ids=lambda part: type(part).__name__,
)
def test_hostile_names_are_text(part: Part) -> None:
    root = parse(part.render())
    assert root.find("script") == []
    assert r"</p><script>alert('1')</script>" in root.text
    assert r"\x1b[31m\u202egpj\udce9" in root.text
    part.render().encode("utf-8")


def read_style(style: str) -> dict[str, float]:
    return {name: float(value) for name, value in (pair.split(":") for pair in style.split(";"))}


def test_headline_has_value_count_and_interval() -> None:
    interval = Interval(0.892, 0.86, 0.917, baseline=0.027)
    root = parse(Headline("89.2", "%", "396 of 444 images right", interval, "2.7 % guessing").render())
    assert root.one(kind="value").text == "89.2%"
    assert root.one(kind="count").text == "396 of 444 images right"
    bar = root.one(kind="interval")
    assert read_style(bar.attributes["style"]) == pytest.approx({"--lo": 86.0, "--mid": 89.2, "--hi": 91.7})
    assert read_style(bar.one("i").attributes["style"]) == pytest.approx({"--at": 2.7})
    assert bar.attributes["aria-label"] == "89.2 percent, 95 percent interval 86.0 to 91.7"
    assert "86.0 to 91.7" in root.one(kind="scale").text
    assert parse(Headline("5.4", "", "loss").render()).find(kind="interval") == []


def test_interval_on_another_axis() -> None:
    assert Interval(0.85, 0.8, 0.9, start=0.8, end=1.0).axis_percent(0.85) == "25.00"


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [
        (((0.808, 0.875), (0.869, 0.923)), ["80", "85", "90", f"95{THIN_SPACE}%"]),
        (((0.0, 1.0),), ["0", "20", "40", "60", "80", f"100{THIN_SPACE}%"]),
        (((0.9, 0.9),), ["89", f"90{THIN_SPACE}%"]),
        (((0.0, 0.0),), ["0", f"1{THIN_SPACE}%"]),
        (((1.0, 1.0),), ["99", f"100{THIN_SPACE}%"]),
    ],
)
def test_a_zoomed_ladder_holds_all_intervals(ends: tuple[tuple[float, float], ...], ticks: list[str]) -> None:
    rungs = [Rung("0:01", "step", "", Interval((low + high) / 2, low, high), outcome="kept") for low, high in ends]
    root = parse(Ladder(rungs, is_zoomed=True).render())
    assert [tick.text for tick in root.one(kind="scale").find("span")] == ticks
    start, end = (float(tick.removesuffix(f"{THIN_SPACE}%")) / 100 for tick in (ticks[0], ticks[-1]))
    for (low, high), bar in zip(ends, root.find(kind="interval"), strict=True):
        places = read_style(bar.attributes["style"])
        expected = [100 * (value - start) / (end - start) for value in (low, high)]
        assert [places["--lo"], places["--hi"]] == pytest.approx(expected, abs=0.01)
        assert 0 <= places["--lo"] <= places["--hi"] <= 100


def test_a_plain_ladder_has_the_whole_axis() -> None:
    root = parse(Ladder([Rung("", "a", "", Interval(0.5, 0.4, 0.6))]).render())
    assert [tick.text for tick in root.one(kind="scale").find("span")] == ["0", "50", f"100{THIN_SPACE}%"]
    assert read_style(root.one(kind="interval").attributes["style"])["--mid"] == 50


def test_table_has_its_rows_and_numbers_on_the_right() -> None:
    table = Table(("name", "n", "what"), [("x & y", "3", Link("a", "b.jpg")), ("z", "4", "c")], text_columns=(0, 2))
    root = parse(table.render())
    assert list_rows(root.one("table")) == [["x & y", "3", "a"], ["z", "4", "c"]]
    assert ["num" in cell.attributes.get("class", "") for cell in root.find("th")] == [False, True, False]
    assert root.one(kind="scroll").attributes["tabindex"] == "0"
    assert root.one("a").attributes["href"] == "b.jpg"


def test_few_images_of_a_class_are_counted() -> None:
    bars = [ClassBar("few", 4, 12, Interval(4 / 12)), ClassBar("many", 25, 50, Interval(0.5))]
    values = [cell.text for cell in parse(ClassBars(bars).render()).find(kind="num")]
    assert values == ["4 / 12", format_short_percent(0.5)]
    bar = ClassBar("average precision", 4, 12, Interval(0.7), is_count=False)
    assert parse(bar.render()).one(kind="num").text == format_short_percent(0.7)


@pytest.mark.parametrize(("num_classes", "num_folded"), [(8, 0), (9, 1), (300, 200)])
def test_eight_classes_are_open(num_classes: int, num_folded: int) -> None:
    bars = [ClassBar(f"class {number}", 1, 2, Interval(0.5)) for number in range(num_classes)]
    root = parse(ClassBars(bars).render())
    folded = [name.text for each in root.find("details") for name in each.find(kind="name")]
    assert len(folded) == num_folded
    assert len(root.find(kind="name")) == 8 + num_folded
    assert [name.text for name in root.find(kind="name")][:8] == [f"class {number}" for number in range(8)]


def test_each_command_can_be_copied() -> None:
    root = parse(Commands(("vitrine demo", "vitrine models")).render())
    assert [block.text for block in root.find("pre")] == ["vitrine demo", "vitrine models"]
    assert len(root.find("button")) == 2


def test_shares_have_a_space_that_does_not_break() -> None:
    assert format_short_percent(0.8917) == "89.2\u202f%"
    assert escape(format_short_percent(1.0, 0)) == "100\u202f%"


@pytest.mark.parametrize("name", ["a.jpg", "a b#c?.jpg", "javascript:alert(1).jpg", "caf\udce9%20.jpg", "größe.jpg"])
def test_links_are_relative_and_lead_to_the_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text("x")
    for page in (tmp_path / "data" / "page.html", tmp_path / "out" / "page.html"):
        link = link_file(tmp_path / "data" / name, page)
        assert ":" not in link
        assert (page.parent.resolve().parent / page.parent.name / unquote(link, errors="surrogateescape")).parent.name == "data"
        assert Path(unquote(link, errors="surrogateescape")).name == name


def test_a_file_on_another_drive_has_an_absolute_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, start: Path) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr("os.path.relpath", fail)
    assert link_file(tmp_path / "a b.jpg", tmp_path / "page.html") == (tmp_path / "a b.jpg").as_uri()
