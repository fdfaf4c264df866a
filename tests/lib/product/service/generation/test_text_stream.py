"""Text out of tokens: what is sent early must be what would have been sent late, however the bytes were cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from threeloops.product.service.generation.text_stream import DONE, TextStream, event
from threeloops.product.text import ByteTokenizer

LETTERS = st.text("abé\n😀", max_size=30)
STOPS = st.lists(st.text("abé😀", min_size=1, max_size=4), max_size=4)


def streamed(pieces, stop=()):
    stream = TextStream(ByteTokenizer().decoder(), stop)
    sent = []
    for piece in pieces:
        sent.append(stream.push(piece))
        if stream.stopped:
            break
    return [*sent, stream.end()], stream.stopped


def cut_at(data, places):
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in zip(places, places[1:], strict=False)]


def expected(text, stop):
    """By the definition: the stop string whose end comes first, and of those the one that begins first."""
    for end in range(1, len(text) + 1):
        begins = [end - len(each) for each in stop if len(each) <= end and text[end - len(each) : end] == each]
        if begins:
            return text[: min(begins)], True
    return text, False


@given(LETTERS, STOPS, st.lists(st.integers(0, 200), max_size=8))
@example("aab", ["ab"], [])
@example("abab", ["abc", "ba"], [2])
def test_the_text_is_that_of_all_bytes_up_to_the_first_stop_string(text, stop, places):
    sent, stopped = streamed(cut_at(text.encode(), places), stop)
    assert ("".join(sent), stopped) == expected(text, stop)


_PARTS = st.sampled_from(["a", "é", "你", "😀"]).map(str.encode) | st.binary(max_size=2)


@given(st.lists(_PARTS, max_size=8), STOPS)
@example([b"\xe4", b"a"], [])
@example([b"abc"], ["abd"])
def test_the_place_of_a_token_is_where_the_text_goes_on_with_it(parts, stop):
    """Bytes of no character count as replacement characters, and so does what is held back for a stop string."""
    text = b"".join(parts)
    whole, stream, sent = text.decode(errors="replace"), TextStream(ByteTokenizer().decoder(), stop), ""
    for at, byte in enumerate(text):
        before, place = text[:at].decode(errors="replace"), stream.place(byte)
        completes = not whole.startswith(before) or text[: at + 1].decode(errors="replace") == before
        assert place == len(before) - completes >= len(sent)
        sent += stream.push((byte,))
        if stream.stopped:
            return


@given(LETTERS, STOPS)
def test_nothing_is_sent_that_a_stop_string_could_still_take_back(text, stop):
    """After every byte, what was sent is the beginning of what every continuation of the text would send."""
    stream, sent = TextStream(ByteTokenizer().decoder(), stop), ""
    for place, byte in enumerate(text.encode()):
        sent += stream.push((byte,))
        if stream.stopped:
            break
        seen = text.encode()[: place + 1].decode(errors="ignore")
        for other in ("", *stop, *(each[1:] for each in stop), *(each[2:] for each in stop)):
            assert expected(seen + other, stop)[0].startswith(sent)


@given(st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=8))
@example(b"\xf0\x9f\x98", [1, 2])
@example(b"\xe2\x28\xa1", [1])
def test_bytes_that_are_not_utf8_become_what_python_makes_of_them(data, places):
    sent, _ = streamed(cut_at(data, places))
    assert "".join(sent) == data.decode(errors="replace")


def test_without_stop_strings_every_character_is_sent_when_it_is_whole():
    stream = TextStream(ByteTokenizer().decoder())
    assert [stream.push((byte,)) for byte in "aé😀".encode()] == ["a", "", "é", "", "", "", "😀"]
    assert stream.end() == ""


def test_what_may_become_a_stop_string_waits_and_comes_when_it_does_not():
    stream = TextStream(ByteTokenizer().decoder(), ["\n\n"])
    assert [stream.push((byte,)) for byte in b"a\nb\n"] == ["a", "", "\nb", ""]
    assert not stream.stopped
    assert stream.end() == "\n"


def test_after_the_stop_string_nothing_is_sent():
    stream = TextStream(ByteTokenizer().decoder(), ["ST"])
    assert stream.push(b"aSTb") == "a"
    assert stream.stopped
    assert (stream.push(b"more"), stream.end()) == ("", "")


def test_a_long_stop_string_that_never_comes_holds_back_no_more_than_its_length():
    stop = "x" * 1000
    stream = TextStream(ByteTokenizer().decoder(), [stop])
    sent = "".join(stream.push(b"x") for _ in range(999)) + "".join(stream.push((byte,)) for byte in b"y")
    assert sent == "x" * 999 + "y"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="a stop string is empty"):
        TextStream(ByteTokenizer().decoder(), ["a", ""])


def test_events_are_lines_that_begin_with_data_and_end_with_an_empty_line():
    assert event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert event(b"[DONE]") == DONE
