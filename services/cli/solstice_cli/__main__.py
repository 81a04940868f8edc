"""`python -m solstice_cli` is `solstice`."""

from solstice_cli.main import main

main()
