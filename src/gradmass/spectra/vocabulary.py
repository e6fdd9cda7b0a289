"""Whether the rows of two embeddings stand for the same tokens."""

import json
from pathlib import Path


def other_tokens(base: Path, tuned: Path) -> str:
    """What to say where ids of two folders' tokenizers mean different tokens; else nothing.

    Looks at ``tokenizer.json``; of folders without one nothing can be said.
    """
    before, after = _tokens(base), _tokens(tuned)
    shared = before.keys() & after.keys()
    other = sorted(id_ for id_ in shared if before[id_] != after[id_])
    if not other:
        return ""
    return (
        f"the tokenizers differ: {len(other):,} of {len(shared):,} shared ids mean other tokens "
        f"(id {other[0]}: {before[other[0]]!r} and {after[other[0]]!r}), so rows of embeddings and "
        "of the output head are not those of the same tokens"
    )


def _tokens(folder: Path) -> dict[int, str]:
    try:
        content = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = content["model"]["vocab"]
        added = {token["id"]: token["content"] for token in content.get("added_tokens", [])}
        # Unigram models list [piece, score] in order of the id, others map pieces to ids.
        pieces = (
            {id_: piece for piece, id_ in vocabulary.items()}
            if isinstance(vocabulary, dict)
            else {id_: piece for id_, (piece, _) in enumerate(vocabulary)}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return pieces | added
