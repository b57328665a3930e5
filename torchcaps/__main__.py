from torchcaps.cli import main

main()
