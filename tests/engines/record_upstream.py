"""Write known_upstream.json anew: the bodies of the versions that the tests were run with.

    python tests/engines/record_upstream.py trl=1.16.0=FOLDER verl=0.9.1=FOLDER ...

A folder is that of the package, installed or in an unpacked wheel. Run the tests of this folder
with a version before it is recorded. Packages that are not named keep what is recorded of them.
"""

import json
import sys
from pathlib import Path

import gradmass.engines
from gradmass.engines.trl_config import TRANSFORMERS_SYMBOLS, TRL_SYMBOLS
from gradmass.engines.upstream import body_hash, find
from gradmass.engines.verl_config import VERL_SYMBOLS

SYMBOLS = {"trl": TRL_SYMBOLS, "transformers": TRANSFORMERS_SYMBOLS, "verl": VERL_SYMBOLS}
FILE = Path(gradmass.engines.__file__).parent / "known_upstream.json"


def main() -> None:
    known: dict[str, dict[str, dict[str, list[str]]]] = {}
    for argument in sys.argv[1:]:
        package, version, folder = argument.split("=")
        for symbol in SYMBOLS[package]:
            if "__init__." in symbol.name:
                continue
            node, text = find(Path(folder), symbol.name)
            if node is None and symbol.is_optional:
                continue
            if node is None:
                sys.exit(f"{package} {version}: {text}")
            bodies = known.setdefault(package, {}).setdefault(symbol.name, {})
            bodies.setdefault(body_hash(text, node), []).append(version)
    FILE.write_text(json.dumps(json.loads(FILE.read_text()) | known, indent=1) + "\n")


if __name__ == "__main__":
    main()
