from hypothesis import given
from hypothesis import strategies as st

from tpsl.report.markup import Markup, fragment, tag


def test_elements_attributes_and_children() -> None:
    assert tag("p", "a < b ", tag("b", "c"), class_="x", data_tip='"&', title=None) == (
        '<p class="x" data-tip="&quot;&amp;">a &lt; b <b>c</b></p>'
    )
    assert fragment() == ""


@given(st.text())
def test_text_cannot_open_anything(text: str) -> None:
    escaped = fragment(text)
    assert isinstance(escaped, Markup)
    assert not set("<>\"'") & set(escaped)
