"""`python -m tpsl` is the command `tpsl`."""

from tpsl.cli.main import main

if __name__ == "__main__":
    main()
