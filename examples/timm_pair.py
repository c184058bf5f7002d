"""Two models of timm, of different families: a ResNet that ships, and an EfficientNet that keeps it in balance.

    python examples/timm_pair.py

Both get the same batch, but their weights expect it normalised differently. `require_same_images` refuses such a pair
before training; here the auxiliary is wrapped, since it does not ship. The models are tiny and start at random, so that
nothing is downloaded; with larger ones and `pretrained=True` the lines are the same. The data are scikit-learn's
digits, enlarged to 32x32. Prints why the pair was refused, losses, and the accuracy and mean confidence of the primary.
"""

import timm
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import interpolate

import counterpoise
from counterpoise.models import Normalisation, Renormalised, normalisation_of, require_same_images

SHAPE = (3, 32, 32)


def digits(normalisation: Normalisation) -> tuple[Tensor, Tensor]:
    """Images `[n, 3, 32, 32]` and their labels."""
    data = load_digits()
    pixels = torch.from_numpy(data.images).float()[:, None] / 16
    mean, std = (torch.tensor(values)[:, None, None] for values in normalisation)
    return (interpolate(pixels, SHAPE[1:]) - mean) / std, torch.from_numpy(data.target)


def main(*, steps: int = 70, batch_size: int = 32, seed: int = 0) -> counterpoise.Scores:
    """Train the pair, and return the scores of the primary on 500 test images."""
    torch.manual_seed(seed)
    primary = timm.create_model("test_resnet", num_classes=10)
    auxiliary = timm.create_model("test_efficientnet", num_classes=10)
    try:
        require_same_images([primary, auxiliary], shape=SHAPE)
    except ValueError as error:
        print(f"refused: {error}")
    auxiliary = Renormalised(auxiliary, given=normalisation_of(primary))
    require_same_images([primary, auxiliary], shape=SHAPE)

    images, labels = digits(normalisation_of(primary))
    objective = counterpoise.MutualTransport(primary, [auxiliary], alpha=0.8)
    # The paper's auxiliary learns at 0.01; in so few steps it would stay soft, and make the primary underconfident.
    groups = objective.parameter_groups(lr=0.1, auxiliary_lr=0.1)
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
    for step in range(steps):
        rows = torch.randint(500, len(images), (batch_size,))
        loss = objective(images[rows], labels=labels[rows]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    objective.eval()
    with torch.no_grad():
        scores = counterpoise.evaluate(logits=primary(images[:500]), labels=labels[:500])
    accuracy, gap = scores["accuracy"], scores["mean_gap"]
    print(f"accuracy {accuracy.value:.3f} ({accuracy.low:.3f} to {accuracy.high:.3f})")
    print(f"confidence - accuracy {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})")
    return scores


if __name__ == "__main__":
    main()
