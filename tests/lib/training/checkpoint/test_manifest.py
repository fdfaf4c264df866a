"""A manifest is checked before it is used: by its checksum, and then, since anybody can make one, by what it says."""

import hashlib

import msgspec
import pytest
from threeloops.training.checkpoint import CorruptCheckpointError
from threeloops.training.checkpoint.format import NewerCheckpointError
from threeloops.training.checkpoint.manifest import BLOCK, Manifest, decode, directory_of, encode, step_of

GOOD = {
    "version": 1,
    "step": 12,
    "world": 2,
    "chain": 0,
    "files": [
        ["step-00000012", "rank-00000.safetensors", 1000, 64, "AAAAAA=="],
        ["step-00000008", "rank-00001.safetensors", 900, 64, "AAAAAA=="],
    ],
    "tensors": {
        "w": {"dtype": "F32", "shape": [4, 3], "pieces": [
            [[0, 0], [3, 3], [[0, 64, 36, "AAAAAA=="]]],
            [[3, 0], [1, 3], [[1, 888, 12, "AAAAAA=="]]],
        ]},
        "scalar": {"dtype": "BF16", "shape": [], "pieces": [[[], [], [[0, 100, 2, "AAAAAA=="]]]]},
        "empty": {"dtype": "I8", "shape": [0, 3], "pieces": []},
    },
    "values": [{"lr": 0.1, "epoch": 3}, {"epoch": 4}],
}  # fmt: skip


def sealed(plain):
    text = msgspec.json.encode(plain)
    return text + b"\nsha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n"


def changed(path, value):
    """A copy of GOOD with one place in it changed."""
    plain = msgspec.json.decode(msgspec.json.encode(GOOD))
    *above, last = path
    place = plain
    for step in above:
        place = place[step]
    place[last] = value
    return plain


def test_what_is_encoded_is_decoded():
    manifest = decode(sealed(GOOD))
    assert decode(encode(manifest)) == manifest
    assert manifest.values_of(1) == {"lr": 0.1, "epoch": 4} and manifest.values_of(0)["epoch"] == 3


def test_every_flipped_bit_and_every_truncation_is_found():
    data = sealed(GOOD)
    for number in range(len(data)):
        for bit in (0, 7):
            flipped = bytearray(data)
            flipped[number] ^= 1 << bit
            with pytest.raises(CorruptCheckpointError):
                decode(bytes(flipped))
        with pytest.raises(CorruptCheckpointError):
            decode(data[:number])


W, BLOCKS = ("tensors", "w"), ("tensors", "w", "pieces", 0, 2)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("version",), 0, "version 0: expected 1 to 2"),
        (("version",), "1", "version"),
        (("step",), -1, "step -1"),
        (("step",), 1.5, "int"),
        (("world",), 0, "of 0"),
        (("world",), 3, "values of 2 ranks of 3"),
        (("values",), [], "values of 0 ranks"),
        (("files", 0, 0), "../x", "names a file"),
        (("files", 0, 0), "step-00000012/..", "names a file"),
        (("files", 0, 1), "/etc/passwd", "names a file"),
        (("files", 0, 1), "..", "names a file"),
        (("files", 0, 1), "a/b", "names a file"),
        (("files", 0, 1), "a\n", "names a file"),
        (("files", 0, 2), -1, "names a file"),
        (("files", 0, 3), 1001, "names a file"),
        (("files", 0, 3), -1, "names a file"),
        ((*W, "dtype"), "F31", "'F31' is not one"),
        ((*W, "shape"), [4, -3], "is not one"),
        ((*W, "shape"), [1 << 40, 1 << 40], "is not one"),
        ((*W, "shape"), [5, 3], "do not make up (5, 3)"),
        ((*W, "shape"), [4], "is not inside of (4,)"),
        ((*W, "pieces", 1, 0), [2, 0], "overlap"),
        ((*W, "pieces", 1, 0), [4, 0], "is not inside"),
        ((*W, "pieces", 1, 0), [-1, 0], "is not inside"),
        ((*W, "pieces", 0, 1), [9, 1], "is not inside"),
        ((*W, "pieces", 0, 1), [0, 3], "is not inside"),
        (BLOCKS, [], "36 bytes of the piece"),
        (BLOCKS, [[0, 64, 12, "AAAAAA=="]], "a block of 12 bytes"),
        (BLOCKS, [[0, 64, 40, "AAAAAA=="]], "a block of 40 bytes"),
        (BLOCKS, [[2, 64, 36, "AAAAAA=="]], "in file 2"),
        (BLOCKS, [[-1, 64, 36, "AAAAAA=="]], "in file -1"),
        (BLOCKS, [[0, 965, 36, "AAAAAA=="]], "a block at 965 is not inside"),
        (BLOCKS, [[0, -1, 36, "AAAAAA=="]], "a block at -1 is not inside"),
        (("tensors", "empty", "pieces"), [[[0, 0], [1, 3], [[0, 64, 3, "AAAAAA=="]]]], "not inside"),
        ((*BLOCKS, 0, 3), "AAA=", "a checksum of 2 bytes"),
        (("tensors",), [], "not one"),
    ],
)  # fmt: skip
def test_what_a_manifest_says_is_checked(path, value, says):
    with pytest.raises(CorruptCheckpointError) as caught:
        decode(sealed(changed(path, value)))
    assert says in str(caught.value)


def test_a_newer_release_is_no_damage():
    with pytest.raises(NewerCheckpointError, match="version 3: expected at most 2"):
        decode(sealed(changed(("version",), 3)))


def test_an_older_release_is_read():
    assert decode(sealed(changed(("version",), 1))).version == 1


def test_a_block_has_its_full_length_but_for_the_last():
    big = {
        "dtype": "U8",
        "shape": [BLOCK + 1],
        "pieces": [[[0], [BLOCK + 1], [[0, 64, BLOCK, "AAAAAA=="], [0, 64, 1, "AAAAAA=="]]]],
    }
    plain = changed(("tensors", "w"), big)
    plain["files"][0][2] = 2 * BLOCK
    assert isinstance(decode(sealed(plain)), Manifest)
    big["pieces"][0][2] = [[0, 64, BLOCK - 1, "AAAAAA=="], [0, 64, 2, "AAAAAA=="]]
    with pytest.raises(CorruptCheckpointError, match="a block of"):
        decode(sealed(plain | {"tensors": {"w": big}}))


def test_directories_are_named_by_step_and_revision():
    assert directory_of(12) == "step-00000012" and directory_of(12, 3) == "step-00000012-r3"
    assert step_of("step-00000012") == (12, 0) and step_of("step-00000012-r3") == (12, 3)
    for other in ("step-12", "step-00000012.tmp", "xstep-00000012", "step-00000012-r", "step-00000012\n", "latest"):
        assert step_of(other) is None
