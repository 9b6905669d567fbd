"""``python -m cometmq``: the command line."""

from cometmq.cli import main

if __name__ == "__main__":
    main()
