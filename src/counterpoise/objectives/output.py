"""The one type that every objective returns."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree


class ObjectiveOutput(dict[str, Any]):
    """What a training step needs: `loss`, `logits`, and the named `parts` of the loss.

    It is a dictionary, because that is what training engines take apart (`output["loss"]`, DDP's and FSDP's search for
    tensors), and it answers to attributes, because that is what people write (`output.loss`). A key is present only
    where it has a value: without labels there is no `loss`, in evaluation there are no `parts`.

    >>> import torch
    >>> output = ObjectiveOutput.of(logits=torch.zeros(1, 2), loss=torch.tensor(0.5))
    >>> output.loss is output["loss"], output.parts, list(output)
    (True, {}, ['loss', 'logits'])
    """

    @classmethod
    def of(
        cls, *, logits: Tensor, loss: Tensor | None = None, parts: Mapping[str, Tensor] | None = None
    ) -> "ObjectiveOutput":
        """An output from its pieces. `parts` are for logging, and are detached."""
        output = cls()
        if loss is not None:
            output["loss"] = loss
        output["logits"] = logits
        if parts:
            output["parts"] = {name: part.detach() for name, part in parts.items()}
        return output

    @property
    def loss(self) -> Tensor | None:
        """The scalar to call `backward` on; None without labels."""
        return self.get("loss")

    @property
    def logits(self) -> Tensor:
        """The primary's logits, as the model returned them."""
        logits: Tensor = self["logits"]
        return logits

    @property
    def parts(self) -> dict[str, Tensor]:
        """Named scalars that the loss is made of; empty in evaluation."""
        parts: dict[str, Tensor] = self.get("parts", {})
        return parts


# FSDP2 hooks the tensors that it finds by flattening a module's output, and only knows registered types.
_pytree.register_pytree_node(
    ObjectiveOutput,
    lambda output: (list(output.values()), list(output)),
    lambda values, keys: ObjectiveOutput(zip(keys, values, strict=True)),
    serialized_type_name="counterpoise.ObjectiveOutput",
)
