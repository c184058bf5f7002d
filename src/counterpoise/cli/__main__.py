"""`python -m counterpoise.cli`."""

from counterpoise.cli import main

main()
