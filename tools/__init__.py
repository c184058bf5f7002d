"""Commands that write figures and pictures into the documentation, and follow its pages as a reader would."""
