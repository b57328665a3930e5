"""Text from anywhere, made safe to print."""

import re

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")


def printable(text: str) -> str:
    r"""Control characters, line ends and changes of the writing direction as escapes, so that a name stays one line.

    Names of files and classes come from anywhere, and a terminal obeys what they hold. Other bytes that are not UTF-8
    pass through as they came.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    return _STEERING.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if code >= 0xDC80 else character.encode("unicode_escape").decode()
