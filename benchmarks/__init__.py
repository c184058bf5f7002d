"""Commands that measure what the documentation claims; each prints JSON and exits with 1 where a figure falls short."""
