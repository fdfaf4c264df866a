"""The files that hold attacks: what would silently weaken an attack is an error that names it."""

import attack_file
import pytest

SECTION = "## exits\nEnds its process.\n- says: exit\n```python\nraise SystemExit\n```\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("- says", "- sais", "hostile.md:1, exits: 'sais': no such key; the keys are after, says"),
        ("- says: exit\n", "", "hostile.md:1, exits: expected '- says: …' below its heading"),
        (
            "- says",
            "says",
            "hostile.md:1, exits: expected a sentence that says what it tries, found 'Ends its process. says",
        ),
        ("Ends its process.\n", "", "hostile.md:1, exits: expected a sentence that says what it tries, found ''"),
        (SECTION, SECTION * 2, "hostile.md has two attacks exits; rename one"),
        ("## exits", "## Exits early", "line 1: '## Exits early': expected '## <what_it_does>'"),
    ],
)
def test_a_section_that_would_be_ignored_in_part_is_named(tmp_path, old, new, message):
    path = tmp_path / "hostile.md"
    path.write_text(SECTION.replace(old, new))
    with pytest.raises(ValueError, match="exits|Exits") as refused:
        attack_file.read(path, {"says", "after"}, needed={"says"})
    assert message in str(refused.value)


def test_an_attack_follows_the_text_that_it_names(tmp_path):
    path = tmp_path / "hostile.md"
    path.write_text(SECTION.replace("- says: exit", "- after: forge.py"))
    (attack,) = attack_file.read(path, {"after"})
    forge = (attack_file.ATTACKS / "forge.py").read_text()
    assert (attack.name, attack.tries, attack.text) == ("exits", "Ends its process.", f"{forge}\nraise SystemExit\n")
