"""`python -m tpsl` is `tpsl`; so `torchrun -m tpsl` starts it in each worker."""

from tpsl.cli.main import main

if __name__ == "__main__":
    main()
