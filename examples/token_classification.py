"""Token classification: logits for every token `[batch, tokens, K]`, with padding that takes no part.

    python examples/token_classification.py

The made-up task: a tag depends on its token and on the one before, and one tag in five is drawn at random. Sentences
differ in length; padded positions have the label -100, as in `torch.nn.functional.cross_entropy` and `transformers`.
The auxiliary is half as wide as the primary. Prints, for cross-entropy and for mutual transport, accuracy and
calibration over the tokens of unseen sentences, whose tags are as noisy. Here tokens are independent but for their
neighbours; where whole sentences are easy or hard, intervals over tokens are too narrow.
"""

import torch
from torch import Tensor, nn

import counterpoise

VOCABULARY, TAGS, PADDING, IGNORED = 30, 5, 0, -100


class Tagger(nn.Module):
    """Token numbers `[batch, tokens]` to logits `[batch, tokens, tags]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.recurrent = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, TAGS)

    def forward(self, tokens: Tensor) -> Tensor:
        """The class axis is last, as objectives and metrics want it."""
        return self.head(self.recurrent(self.embedding(tokens))[0])


def sentences(count: int, *, wrong_tags: float = 0.2, longest: int = 12, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels `[count, longest]`; both are padded after the end of a sentence."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY, (count, longest), generator=generator)
    after_large = torch.zeros_like(tokens)
    after_large[:, 1:] = tokens[:, :-1] > VOCABULARY // 2
    tags = (tokens + after_large) % TAGS
    wrong = torch.rand(tags.shape, generator=generator) < wrong_tags
    tags = torch.where(wrong, torch.randint(TAGS, tags.shape, generator=generator), tags)
    lengths = torch.randint(3, longest + 1, (count, 1), generator=generator)
    padded = torch.arange(longest) >= lengths
    return tokens.masked_fill(padded, PADDING), tags.masked_fill(padded, IGNORED)


def train(objective: counterpoise.MutualTransport, *, steps: int) -> None:
    """Train on 300 sentences; labels that are ignored reach neither the loss nor a gradient."""
    optimizer = torch.optim.AdamW(objective.parameter_groups(lr=0.01, auxiliary_lr=0.003))
    tokens, labels = sentences(300, seed=0)
    for _ in range(steps):
        rows = torch.randint(len(tokens), (32,))
        loss = objective(tokens[rows], labels=labels[rows]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main(*, steps: int = 150, seed: int = 0) -> dict[str, counterpoise.Scores]:
    """Train with and without an auxiliary, and return the scores of both over tokens."""
    tokens, labels = sentences(500, seed=1)
    results = {}
    for name, auxiliary_widths in {"cross-entropy": [], "mutual transport": [24]}.items():
        torch.manual_seed(seed)
        primary, auxiliaries = Tagger(48), [Tagger(width) for width in auxiliary_widths]
        train(counterpoise.MutualTransport(primary, auxiliaries, alpha=0.8, ignore_index=IGNORED), steps=steps)
        with torch.no_grad():
            logits = primary.eval()(tokens)
        # Metrics take no label that is not a class: what does not count is left out by `valid`.
        scores = counterpoise.evaluate(logits=logits, labels=labels, valid=labels != IGNORED)
        accuracy, ece = scores["accuracy"], scores["ece"]
        print(f"{name:16} accuracy {accuracy.value:.1%}  ECE {ece.value:.1%} ({ece.low:.1%} to {ece.high:.1%})")
        results[name] = scores
    return results


if __name__ == "__main__":
    main()
