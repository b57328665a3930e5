from torchcaps.app.cli import main

main()
