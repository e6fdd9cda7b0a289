"""The format rule: a completion is right where its form and its answer both are."""

from typing import Literal

Layout = Literal["none", "answer", "think_answer"]
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def answer_in_layout(text: str, layout: Layout) -> str | None:
    """What a completion gives as its answer, or None where it does not have the form.

    Args:
        text: The completion.
        layout: ``none``: anything, the answer is all of it. ``answer``: it ends in
            ``<answer>...</answer>``, and neither tag is anywhere else. ``think_answer``:
            ``<think>...</think><answer>...</answer>`` with nothing but white space around the two,
            and no tag anywhere else.

    Returns:
        The answer without white space around it, or all of the completion for ``none``.

    >>> answer_in_layout("<think>1+1</think> <answer> 2 </answer>", "think_answer")
    '2'
    >>> answer_in_layout("<answer>2</answer> or <answer>3</answer>", "answer") is None
    True
    """
    if layout == "none":
        return text
    required = TAGS if layout == "think_answer" else TAGS[2:]
    places = [text.find(tag) for tag in required]
    if any(text.count(tag) != 1 for tag in required) or places != sorted(places):
        return None
    before, _, rest = text.partition("<answer>")
    answer, _, after = rest.partition("</answer>")
    if after.strip():
        return None
    if layout == "think_answer":
        lead, _, thought = before.partition("<think>")
        _, _, between = thought.partition("</think>")
        if lead.strip() or between.strip():
            return None
    return answer.strip()
