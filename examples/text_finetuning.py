"""Fine-tune a pretrained text classifier with transformers.Trainer, by cross-entropy and by mutual transport.

    python examples/text_finetuning.py MODEL

MODEL is the folder of any encoder that `AutoModelForSequenceClassification` loads, with its tokenizer: one that
`save_pretrained` wrote, a snapshot in the Hub's cache, or a package's. Nothing is downloaded. Without MODEL a tiny BERT
with random weights is trained, which shows that the code runs and no more.

The texts are real and already there: the first paragraphs of docstrings of installed libraries. The task is to tell
which library a paragraph documents; the libraries' own names are masked. Primary and auxiliary start from the same
weights, with different new heads.
"""

import argparse
import ast
import re
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import counterpoise
from counterpoise.functional.losses import cross_entropy
from counterpoise.integrations.transformers import ObjectiveCallback

LIBRARIES = ("matplotlib", "numpy", "scipy", "sklearn")
LENGTH = 64


def paragraphs(library: str) -> Iterator[str]:
    """First paragraphs of the docstrings of a library, read from its sources without importing it."""
    spec = find_spec(library)
    assert spec is not None
    assert spec.submodule_search_locations
    names = re.compile(r"\b(matplotlib|pyplot|plt|numpy|np|scipy|sp|sklearn|scikit-learn)\b", re.IGNORECASE)
    sources = sorted(Path(spec.submodule_search_locations[0]).rglob("*.py"))
    for path in (sources[place] for place in np.random.default_rng(0).permutation(len(sources))):
        if "test" in str(path):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings of others
            tree = ast.parse(path.read_text(errors="replace"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                first = " ".join(text.split("\n\n")[0].split())
                if len(first.split()) >= 6:
                    yield names.sub("it", first)


def documents(each: int) -> list[tuple[str, int]]:
    """So many different paragraphs of each library with its number, shuffled."""
    found: dict[str, int] = {}
    for label, library in enumerate(LIBRARIES):
        for text in paragraphs(library):
            found.setdefault(text, label)
            if sum(other == label for other in found.values()) == each:
                break
    rows = list(found.items())
    return [rows[place] for place in np.random.default_rng(1).permutation(len(rows))]


def tiny(texts: list[str]) -> tuple[Any, Any]:
    """A tokenizer of words and a tiny BERT with random weights."""
    from tokenizers import BertWordPieceTokenizer

    words = BertWordPieceTokenizer()
    words.train_from_iterator(texts, vocab_size=1000, show_progress=False)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words._tokenizer, **names)
    config = BertConfig(
        vocab_size=1000,
        max_position_embeddings=LENGTH,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=len(LIBRARIES),
    )
    return tokenizer, lambda: BertForSequenceClassification(config)


def main(model: str | Path | None, *, each: int = 500, steps: int = 150, seed: int = 0) -> dict[str, Any]:
    """Train twice, and return the scores of each method on the test texts."""
    rows = documents(each)
    texts = [text for text, _ in rows]
    if model is None:
        tokenizer, network = tiny(texts)
    else:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)

        def network() -> Any:
            return AutoModelForSequenceClassification.from_pretrained(
                model, num_labels=len(LIBRARIES), local_files_only=True
            )

    encoded = tokenizer(texts, truncation=True, max_length=LENGTH)
    samples = [
        {name: encoded[name][row] for name in ("input_ids", "attention_mask")} | {"labels": label}
        for row, (_, label) in enumerate(rows)
    ]
    test = len(rows) // 2
    scores = {}
    for name in ("cross-entropy", "MTE-1"):
        torch.manual_seed(seed)
        primary = network()
        objective: Any
        if name == "MTE-1":
            objective = counterpoise.MutualTransport(primary, [network()], alpha=0.8)
        else:
            objective = counterpoise.SupervisedObjective(primary, cross_entropy)
        lr = 1e-3 if model is None else 1e-4
        # In so few steps, an auxiliary that learns at a tenth of the rate would hold the primary back.
        optimizer = torch.optim.AdamW(objective.parameter_groups(lr=lr, auxiliary_lr=lr / 2), weight_decay=0.01)
        # The primary's learning rate warms up and falls; that of an auxiliary stays.
        decay = [lambda step: min((step + 1) / 10, 1 - step / steps), lambda _: 1.0]
        scheduler = LambdaLR(optimizer, decay[: len(optimizer.param_groups)])
        with tempfile.TemporaryDirectory() as scratch:
            arguments = TrainingArguments(
                output_dir=scratch,
                max_steps=steps,
                per_device_train_batch_size=16,
                per_device_eval_batch_size=100,
                max_grad_norm=0,  # the default clips both models by one joint norm
                remove_unused_columns=False,  # the default drops the inputs that the objective passes on
                seed=seed,
                logging_steps=50,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
            )
            trainer = Trainer(
                model=objective,
                args=arguments,
                train_dataset=samples[test:],
                data_collator=DataCollatorWithPadding(tokenizer),
                optimizers=(optimizer, scheduler),
                callbacks=[ObjectiveCallback()],
            )
            trainer.train()
            found = trainer.predict(samples[:test])
        scores[name] = counterpoise.evaluate(logits=np.asarray(found.predictions), labels=found.label_ids)
        values = {metric: scores[name][metric].value for metric in ("accuracy", "nll", "ece")}
        print(f"{name:14} accuracy {values['accuracy']:.1%}, NLL {values['nll']:.3f}, ECE {values['ece']:.1%}")
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fine-tune a text classifier.")
    parser.add_argument("model", nargs="?", help="folder of a pretrained encoder and its tokenizer")
    main(parser.parse_args().model)
