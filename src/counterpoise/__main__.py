"""`python -m counterpoise`."""

from counterpoise.cli import main

main()
