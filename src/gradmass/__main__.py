"""``python -m gradmass``."""

from gradmass.cli import main

main()
