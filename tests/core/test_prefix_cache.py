"""Keys: equal content, equal key; any difference in kind, order or place, another key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.core.prefix_cache import Part, block_key, salt_parts

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=6)


def test_equal_content_has_an_equal_key() -> None:
    parent = block_key([1, 2], None, salt_parts("s"))
    assert block_key([3, 4], parent) == block_key([3, 4], block_key([1, 2], None, salt_parts("s")))
    assert len(parent) == 32


def test_everything_a_block_depends_on_changes_the_key() -> None:
    parent = block_key([1], None)
    keys = [
        block_key([1, 2], None),
        block_key([2, 1], None),
        block_key([1, 2], parent),
        block_key([1, 2], block_key([2], None)),
        block_key([1, 2], None, salt_parts("")),
        block_key([1, 2], None, salt_parts("a")),
        block_key([1, 2], None, [(Part.PARENT, b"a")]),
    ]
    assert len(set(keys)) == len(keys)


def test_a_salt_that_looks_like_a_parent_is_not_one() -> None:
    """Untagged parts would make these two the same bytes, and let one tenant read another's prefix."""
    parent = bytes(range(32))
    assert block_key([1], parent) != block_key([1], None, [(Part.SALT, parent)])


def test_any_text_can_be_a_salt() -> None:
    assert salt_parts(None) == []
    assert salt_parts("\ud800 é") != salt_parts("é")


@given(TOKENS, TOKENS, st.binary(max_size=4), st.binary(max_size=4))
def test_keys_collide_only_for_equal_parts(one: list[int], other: list[int], salt: bytes, parent: bytes) -> None:
    same = block_key(one, parent, [(Part.SALT, salt)]) == block_key(other, salt, [(Part.SALT, parent)])
    assert same == (one == other and salt == parent)
