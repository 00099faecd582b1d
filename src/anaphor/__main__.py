"""`python -m anaphor`: the command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # `python -m` puts the current folder there, and would execute a torch.py that lies in it

    from anaphor.cli.main import main

    sys.exit(main())
