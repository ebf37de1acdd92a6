"""Text of a file must not become code, an attribute, a pattern, a path or a process: each call that could do so was
looked at."""

from __future__ import annotations

from tests.attacks.calls_by_name import found_calls
from tests.attacks.reviewed_calls import REVIEWED


def test_every_call_by_a_computed_name_was_reviewed() -> None:
    found = {(file, call) for file, calls in found_calls().items() for call in calls}
    reviewed = {(file, call) for file, calls in REVIEWED.items() for call in calls}
    assert sorted(found - reviewed) == [], "new: can the text come from a file? Guard it; note it in reviewed_calls.py"
    assert sorted(reviewed - found) == [], "gone: take it out of reviewed_calls.py"


def test_no_source_text_is_made_but_for_verified_advice() -> None:
    makers = ("exec(", "eval(", "compile(", "__import__(", "fx.Graph(", "fx.GraphModule(")
    files = {file for file, calls in found_calls().items() if any(call.startswith(makers) for call in calls)}
    assert files == {"verify/code.py", "verify/edits.py"}
