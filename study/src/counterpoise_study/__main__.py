"""`python -m counterpoise_study`."""

from counterpoise_study.cli import main

main()
