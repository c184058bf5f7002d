"""What tables call data sets, domains and networks."""

from counterpoise.models import Backbone

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}
"""Data sets as the paper's tables call them."""

DOMAINS = {"art_painting": "art", "cartoon": "cartoon", "photo": "photo", "sketch": "sketch"}
"""Domains of PACS, and what the paper's table calls them."""


def network_title(backbone: Backbone) -> str:
    """Such as `ResNet18 w16`.

    >>> network_title(Backbone("resnet34")), network_title(Backbone("cnn", width=4))
    ('ResNet34', 'CNN w4')
    """
    name = backbone.name.replace("resnet", "ResNet").replace("cnn", "CNN")
    return name if backbone.width == Backbone().width else f"{name} w{backbone.width}"
